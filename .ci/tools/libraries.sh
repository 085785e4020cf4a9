#!/usr/bin/env bash
# Compares the libraries that a binary names (go version -m) with those in go.mod: .ci/tools/libraries.sh bin/coffer
set -euo pipefail
cd "$(dirname "$0")/../.."
# cloud.google.com/go is in no binary: go mod tidy wants it for a file with the build constraint modhack. wincred is in those for Windows.
if ! diff <(go version -m "$1" | awk '$1 == "dep" { print $2, $3 }' | sort) \
	<(awk '/^\t/ && $1 != "cloud.google.com/go" && $1 != "github.com/danieljoos/wincred" { print $1, $2 }' go.mod | sort); then
	echo "$1 (<) and go.mod (>) name different libraries: what only tests import belongs into test/go.mod"
	exit 1
fi
