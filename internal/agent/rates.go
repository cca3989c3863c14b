// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"aether.io/aether/internal/daemon"
	"aether.io/aether/internal/envoy"
)

const (
	ratesDirMode  = 0o755
	ratesFileMode = 0o644
	maxRatesFile  = 4096
)

// writeRates writes the files that Envoy's log filters read. Files of other rates
// stay: an Envoy may still have listeners that name them. A good file is left as
// it is, as Envoy watches it.
func writeRates(s envoy.Settings) error {
	if err := os.MkdirAll(s.RatesDir, ratesDirMode); err != nil {
		return err
	}
	for name, content := range envoy.RateFiles(s) {
		path := filepath.Join(s.RatesDir, name)
		if have, err := daemon.ReadFile(path, maxRatesFile); err == nil && bytes.Equal(have, content) {
			continue
		}
		if err := daemon.WriteFile(path, content, ratesFileMode); err != nil {
			return fmt.Errorf("write rate: %w", err)
		}
	}
	return nil
}
