// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"aether.io/aether/internal/convert"
)

func TestConnectOnly(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pods.yaml"), []byte(`
apiVersion: v1
kind: Pod
metadata: {name: waits, namespace: shop}
spec:
  nodeName: n1
  initContainers:
  - {name: wait, image: x, command: [sh, -c, "until nc -w 1 -z ledger 5432; do sleep 1; done"]}
  containers:
  - name: app
    image: x
    args: [bash, -c, "exec 3<>/dev/tcp/ledger/5432"]
    readinessProbe: {tcpSocket: {port: 80}}
    livenessProbe: {tcpSocket: {port: 5432, host: ledger.shop}}
    startupProbe: {exec: {command: [wait-for-it, "ledger:5432"]}}
---
apiVersion: v1
kind: Pod
metadata: {name: reads, namespace: shop}
spec:
  containers:
  - name: app
    image: x
    command: [sync, -z, "--once"]
    readinessProbe: {httpGet: {port: 80}}
    livenessProbe: {exec: {command: [psql, -h, ledger, -c, "select 1"]}}
---
apiVersion: v1
kind: Pod
metadata: {name: elsewhere, namespace: shop}
spec:
  nodeName: n2
  containers:
  - {name: app, image: x, command: [nc, -z, ledger, "5432"]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ConnectOnly([]string{dir}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got, func(a, b convert.Connecting) int { return cmp.Compare(a.Field, b.Field) })
	want := []convert.Connecting{
		{Pod: "shop/waits", Field: "spec.containers[0].command", What: "bash -c exec 3<>/dev/tcp/ledger/5432", Own: false},
		{Pod: "shop/waits", Field: "spec.containers[0].livenessProbe", What: "tcpSocket 5432 ledger.shop", Own: false},
		{Pod: "shop/waits", Field: "spec.containers[0].readinessProbe", What: "tcpSocket 80", Own: true},
		{Pod: "shop/waits", Field: "spec.containers[0].startupProbe", What: "wait-for-it ledger:5432", Own: false},
		{Pod: "shop/waits", Field: "spec.initContainers[0].command", What: "sh -c until nc -w 1 -z ledger 5432; do sleep 1; done", Own: false},
	}
	if d := gocmp.Diff(want, got); d != "" {
		t.Errorf("what only connects (-want +got):\n%s", d)
	}
	if _, err := ConnectOnly([]string{filepath.Join(dir, "gone")}, "n1"); err == nil {
		t.Error("a directory that is not there was read")
	}
}
