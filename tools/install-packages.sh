#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes sure that commands are there, and installs their Debian packages when
# one is missing and we may.
#
# usage: tools/install-packages.sh COMMAND:PACKAGE...
set -euo pipefail

# Debian keeps nft and ip in sbin, which is not on every user's PATH.
PATH=$PATH:/usr/sbin:/sbin

missing=()
for pair in "$@"; do
	command -v "${pair%%:*}" >/dev/null 2>&1 || missing+=("${pair##*:}")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
	echo "installing ${missing[*]}" >&2
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
	exit 0
fi
echo "please install: ${missing[*]}" >&2
exit 1
