#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# fuzz.sh TIME: runs every fuzzer of the module for that long each (such as 60s),
# one after the other. What makes one fail is left in its testdata/fuzz.
set -euo pipefail

time=${1:?usage: fuzz.sh TIME}
output=$(mktemp)
trap 'rm -f "$output"' EXIT
failed=0
ran=0

while read -r package; do
	for fuzzer in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
		ran=$((ran + 1))
		echo "$package $fuzzer for $time"
		if go test -run '^$' -fuzz "^$fuzzer\$" -fuzztime "$time" -fuzzminimizetime 5s "$package" >"$output" 2>&1; then
			tail -n 3 "$output" | head -n 1
		elif grep -q 'context deadline exceeded' "$output" && ! grep -qE 'panic|Failing input written|_test\.go:' "$output"; then
			# go test's own: the time ended while it was busy with itself.
			echo "ended in time"
		else
			cat "$output"
			failed=1
		fi
	done
done < <(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n 1 dirname | sort -u)

if [ "$ran" -eq 0 ]; then
	echo "there is no fuzzer" >&2
	exit 1
fi
exit "$failed"
