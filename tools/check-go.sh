#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Says what is missing before Go says it in its own way: a Go that is new
# enough, and folders for what it downloads and builds.
#
# usage: tools/check-go.sh
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
need=$(sed -n 's/^go //p' "$here/../go.mod")

if ! command -v go >/dev/null 2>&1; then
	echo "building needs Go $need or newer: https://go.dev/dl, or your distribution's package" >&2
	exit 1
fi
have=$(GOTOOLCHAIN=local go env GOVERSION)
if [ "$(printf '%s\n%s\n' "$need" "${have#go}" | sort -V | head -n 1)" != "$need" ]; then
	echo "building needs Go $need or newer, and $(command -v go) is $have" >&2
	exit 1
fi

# writable succeeds when a folder can be written, or made.
writable() {
	local dir=$1
	while [ ! -e "$dir" ]; do dir=$(dirname "$dir"); done
	[ -d "$dir" ] && [ -w "$dir" ]
}

for name in GOCACHE GOMODCACHE; do
	dir=$(GOTOOLCHAIN=local go env "$name" 2>/dev/null || true)
	[ "$dir" != off ] || dir=""
	if [ -n "$dir" ] && writable "$dir"; then
		continue
	fi
	# A module cache that holds everything already may be read-only.
	if [ "$name" = GOMODCACHE ] && (cd "$here/.." && GOTOOLCHAIN=local GOPROXY=off go list -deps ./cmd/... >/dev/null 2>&1); then
		continue
	fi
	echo "Go needs a folder that you can write for $name; it would be ${dir:-nowhere} (HOME is ${HOME:-not set})." >&2
	echo "Try: export GOCACHE=\$PWD/.build/go-build GOMODCACHE=\$PWD/.build/go-mod GOFLAGS=-modcacherw" >&2
	exit 1
done
