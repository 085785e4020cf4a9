#!/usr/bin/env bash
# The packages beside test/ in which the race detector has nothing to find ("alone"), or all others ("shared"). Alone is a package
# that neither in its code nor in its tests starts a goroutine, locks, waits, or serves. The tests of what calls it have the detector.
set -euo pipefail
cd "$(dirname "$0")/../.."
go list -f '{{.ImportPath}} {{.Dir}}' ./... | while read -r package dir; do
	kind=alone
	if grep -qE '\bgo func|^\s*go [a-zA-Z]|\.Go\(|AfterFunc|NewTicker|RunParallel|httptest|leaktest|synctest|Listen\(|"sync"|"sync/atomic"' "$dir"/*.go; then
		kind=shared
	fi
	if test "$kind" = "$1"; then echo "$package"; fi
done
