// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// maxSetAside is how many files of one name are set aside before the last of
// them is overwritten.
const maxSetAside = 20

// WriteFile replaces the file at path by data, whole or not at all. The data is
// on the disk when it returns nil.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	if err := renameio.WriteFile(path, data, mode, renameio.WithTempDir(dir), renameio.IgnoreUmask()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("write %s: sync directory: %w", path, err)
	}
	return nil
}

// ReadFile reads a file of at most limit bytes. A file that does not exist is
// nil without an error.
func ReadFile(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("read %s: it has %d bytes, more than %d", path, info.Size(), limit)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return b, nil
}

// SetAside renames a damaged file to path.damaged-<n> with the first free n from
// 1, and returns the new name. It keeps twenty of them at most.
func SetAside(path string) (string, error) {
	for n := 1; ; n++ {
		aside := fmt.Sprintf("%s.damaged-%d", path, n)
		if _, err := os.Lstat(aside); err == nil && n < maxSetAside {
			continue
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("set %s aside: %w", path, err)
		}
		if err := os.Rename(path, aside); err != nil {
			return "", fmt.Errorf("set %s aside: %w", path, err)
		}
		return aside, nil
	}
}
