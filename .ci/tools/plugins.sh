#!/usr/bin/env bash
# plugins.sh DIRECTORY: builds the plugins that come with Coffer, those of server/plugin/release.txt, into a directory, and lists them with
# their checksums in its plugins.json; for another platform with GOOS and GOARCH. Go's checksum database vouches for the sources. What is
# there already is not built again.
set -euo pipefail
list=$(cd "$(dirname "$0")/../.." && pwd)/server/plugin/release.txt
mkdir -p "$1"
directory=$(cd "$1" && pwd)
export GOWORK=off GOFLAGS=-trimpath CGO_ENABLED=0
unset GOBIN

entries=()
while read -r type name module version; do
	program=$(basename "$module")
	file=$program-$version
	if ! test -x "$directory/$file"; then
		echo "building $program $version"
		# GOBIN is not for programs of another platform, which are in a directory of its name.
		GOMODCACHE=$(go env GOMODCACHE) GOPATH=$directory/new go install -ldflags='-s -w' "$module/cmd/$program@$version"
		mv "$(find "$directory/new/bin" -type f -name "$program")" "$directory/$file"
		rm -rf "$directory/new"
	fi
	sum=$(sha256sum "$directory/$file" | cut -d' ' -f1)
	entries+=("{\"type\":\"$type\",\"name\":\"$name\",\"version\":\"$version\",\"command\":\"$file\",\"sha256\":\"$sum\"}")
done < <(grep -v '^#' "$list")
(
	IFS=,
	echo "[${entries[*]}]"
) >"$directory/plugins.json.new"
mv "$directory/plugins.json.new" "$directory/plugins.json"
chmod -R go-w "$directory"
