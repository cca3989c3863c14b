#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# fuzz.sh TIME: runs every fuzzer of the module for that long each (such as 60s),
# two at a time with one worker each. What makes one fail is left in its
# testdata/fuzz.
set -euo pipefail

time=${1:?usage: fuzz.sh TIME}
export time

# run PACKAGE FUZZER
run() {
	local output
	output=$(mktemp)
	echo "$1 $2 for $time"
	if go test -run '^$' -fuzz "^$2\$" -fuzztime "$time" -fuzzminimizetime 5s -parallel 1 "$1" >"$output" 2>&1; then
		echo "$1 $2: $(tail -n 3 "$output" | head -n 1)"
	elif grep -q 'context deadline exceeded' "$output" && ! grep -qE 'panic|Failing input written|_test\.go:' "$output"; then
		# go test's own: the time ended while it was busy with itself.
		echo "$1 $2: ended in time"
	else
		cat "$output"
		rm -f "$output"
		return 255 # xargs starts no more
	fi
	rm -f "$output"
}
export -f run

fuzzers=$(
	grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n 1 dirname | sort -u | while read -r package; do
		go test -list '^Fuzz' "$package" | sed -n "s#^Fuzz.*#$package &#p"
	done
)
if [ -z "$fuzzers" ]; then
	echo "there is no fuzzer" >&2
	exit 1
fi
xargs -P 2 -L 1 bash -c 'run "$@"' run <<<"$fuzzers"
