#!/usr/bin/env bash
# Builds the web UI from the versioned files of server/ui/web in a directory of its own, and compares it with server/ui/dist.
set -euo pipefail
cd "$(dirname "$0")/../.."
if git ls-files -z '*package-lock.json' | xargs -0 grep -n '"resolved"'; then
	echo "ui-check: a package-lock.json names where packages are downloaded: omit-lockfile-registry-resolved belongs into .npmrc"
	exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git ls-files -z server/ui/web | tar -c --null -T - | tar -x -C "$work"
(cd "$work/server/ui/web" && npm ci --silent && npm run --silent build -- --logLevel=warn)
if ! diff -r "$work/server/ui/dist" server/ui/dist >"$work/diff"; then
	grep -v '^[<>]' "$work/diff" | cut -c1-200 || true
	echo "ui-check: server/ui/dist is not what server/ui/web builds: run make ui"
	exit 1
fi
echo "ui-check: server/ui/dist is what server/ui/web builds: $(find server/ui/dist -type f | wc -l) files"
