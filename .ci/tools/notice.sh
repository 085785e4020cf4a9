#!/usr/bin/env bash
# Prints NOTICE: the licenses and notices of all modules that the binary links, each text once. .ci/tools/notice.sh > NOTICE
set -euo pipefail
cd "$(dirname "$0")/../.."
export GOWORK=off LC_ALL=C
PLATFORMS="linux/amd64 linux/arm64 darwin/amd64 darwin/arm64"
declare -A text modules
while read -r module dir; do
	found=
	for file in "$dir"/{LICENSE,LICENCE,COPYING,NOTICE,PATENTS}*; do
		test -f "$file" || continue
		sum=$(tr -s '[:space:]' ' ' <"$file" | sha256sum)
		text[$sum]=${text[$sum]:-$file}
		modules[$sum]+="  $module"$'\n'
		found=yes
	done
	test "$found" || { echo "$module has no license file" >&2; exit 1; }
done < <(
	echo "Go $(go env GOROOT)"
	for platform in $PLATFORMS; do
		GOOS=${platform%/*} GOARCH=${platform#*/} go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}' ./cmd/coffer
	done | sort -u
)
cat <<'EOF'
Coffer's own license is in the file LICENSE. Its binary contains the modules below and Go's standard library. Each text holds for
the modules named above it. The licenses of the libraries in the web UI are in server/ui/dist/licenses.md, which a server
serves as /ui/licenses.md. The source of each module is published under its path, in the version that go.mod and the SBOM of a release name.
Written by .ci/tools/notice.sh.
EOF
for sum in "${!text[@]}"; do
	printf '%s\t%s\n' "${modules[$sum]%%$'\n'*}" "$sum"
done | sort | cut -f2 | while read -r sum; do
	printf '\n%s\n%s\n' "================================================================================" "${modules[$sum]}"
	tr -d '\r' <"${text[$sum]}"
done
