#!/usr/bin/env bash
# Runs every fuzz target of the module for a while: test/fuzz.sh [duration, default 10s]
set -euo pipefail
cd "$(dirname "$0")/.."
for file in $(grep -rl --include='*_test.go' '^func Fuzz' .); do
	for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file"); do
		echo "== $(dirname "$file") $target"
		go test -run='^$' -fuzz="^$target\$" -fuzztime="${1:-10s}" -fuzzminimizetime=10x "$(dirname "$file")"
	done
done
