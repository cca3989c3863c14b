// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// inUserNamespace is set for the copy of the test binary that runs as an
// unprivileged user in namespaces of its own.
const inUserNamespace = "CAPTURE_TEST_IN_USER_NAMESPACE"

func TestMain(m *testing.M) {
	if os.Getenv(inUserNamespace) != "" {
		if err := unprivilegedMain(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
