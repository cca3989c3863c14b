// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

// Owner is an ordinary user in whose own namespaces a sandbox runs. Root's
// sandboxes have none.
type Owner struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
	// Name is empty for a user whom the system does not know.
	Name string `json:"name,omitempty"`
}

// String names the user for people.
func (o Owner) String() string {
	if o.Name == "" {
		return fmt.Sprintf("uid %d", o.UID)
	}
	return fmt.Sprintf("%s (uid %d)", o.Name, o.UID)
}

func thisUser() Owner {
	o := Owner{UID: os.Geteuid(), GID: os.Getegid()}
	if u, err := user.LookupId(strconv.Itoa(o.UID)); err == nil {
		o.Name = u.Username
	}
	return o
}

// surroundingsRecord is what processes in namespaces made by EnterNamespaces or
// Start find in recordFile: /run is theirs there, so nobody else can write it.
type surroundingsRecord struct {
	Owner Owner `json:"owner"`
	// StateDir is the user's default outside.
	StateDir string `json:"stateDir"`
}

const recordFile = "/run/.aether-sandbox-owner"

var readRecord = sync.OnceValues(func() (surroundingsRecord, bool) {
	var r surroundingsRecord
	b, err := os.ReadFile(recordFile)
	return r, err == nil && json.Unmarshal(b, &r) == nil
})

// NamespaceOwner returns the ordinary user whose namespaces this process runs
// in; false for any process that neither EnterNamespaces nor Start put there.
func NamespaceOwner() (Owner, bool) {
	r, inside := readRecord()
	return r.Owner, inside
}

// rootless reports whether this user's sandboxes live in namespaces of the
// user's own: what is theirs on this machine is then a directory and nothing
// else.
func rootless() bool {
	_, inside := NamespaceOwner()
	return inside || os.Geteuid() != 0
}

// DefaultStateDir is where this user's sandboxes live unless Config.StateDir or
// --sandbox-dir says otherwise: /run/aether-sandbox for root, else
// aether-sandbox under $XDG_RUNTIME_DIR when that is the user's own directory,
// else aether-sandbox-UID in the directory for temporary files.
func DefaultStateDir() string {
	if r, inside := readRecord(); inside {
		return r.StateDir
	}
	uid := os.Geteuid()
	if uid == 0 {
		return rootStateDir
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && ownDirectory(dir, uid) == nil {
		return filepath.Join(dir, "aether-sandbox")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("aether-sandbox-%d", uid))
}

// ownDirectory is nil for a directory, not a link to one, that belongs to the
// user and that nobody else can write.
func ownDirectory(dir string, uid int) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case !ok || int(st.Uid) != uid:
		return fmt.Errorf("%s belongs to somebody else", dir)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s can be written by others", dir)
	}
	return nil
}

// checkStateDir refuses a default directory that somebody else put there: who
// can write it can stand in for the sandbox. One that is not there is fine, and
// so is any that was asked for by name.
func (c Config) checkStateDir() error {
	if os.Geteuid() == 0 || c.StateDir != DefaultStateDir() {
		return nil
	}
	if err := ownDirectory(c.StateDir, os.Geteuid()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("state directory: %w: give another with --sandbox-dir", err)
	}
	return nil
}

// makeStateDir makes the directory of all sandboxes: for nobody else's eyes when
// it is an ordinary user's.
func (c Config) makeStateDir() error {
	mode := os.FileMode(0o755)
	if rootless() {
		mode = 0o700
	}
	if err := os.MkdirAll(c.StateDir, mode); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	return c.checkStateDir()
}

// ownerNotes says what does not work without root, for Status.
func ownerNotes(o Owner, openFiles, wanted uint64) []string {
	notes := []string{
		fmt.Sprintf("without root: all processes of the sandbox belong to %s, and no pod can become another user", o),
		"without root: capabilities of pods, privileged ones too, hold for the sandbox's own namespaces (no device nodes, no clock, no kernel modules)",
	}
	if openFiles < wanted {
		notes = append(notes, fmt.Sprintf("without root: at most %d descriptors for each process, not %d, and Envoy accepts connections accordingly: raise the hard limit (ulimit -Hn)", openFiles, wanted))
	}
	return notes
}
