// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"testing"

	"aether.io/aether/test/lab"
	"aether.io/aether/test/lab/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m, lab.Config{}) }
