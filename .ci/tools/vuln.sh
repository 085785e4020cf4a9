#!/usr/bin/env bash
# Looks for known vulnerabilities in what the binary links and calls. Fails if there are some, and says so if it could not look.
set -euo pipefail
cd "$(dirname "$0")/../.."
export GOWORK=off
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -C .ci/tools -o "$work/" golang.org/x/vuln/cmd/govulncheck
# One package first, which takes seconds, to see whether there is a database.
if ! "$work/govulncheck" ./storage/lthash >"$work/out" 2>&1 && grep '^govulncheck: fetching vulnerabilities' "$work/out"; then
	echo "vuln: NOT CHECKED: the database of vulnerabilities cannot be reached"
	exit 0
fi
"$work/govulncheck" ./...
