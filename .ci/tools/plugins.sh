#!/usr/bin/env bash
# plugins.sh DIRECTORY: builds the plugins that come with Coffer into a directory, from their modules at pinned versions, and lists them
# with their checksums in its plugins.json; for another platform with GOOS and GOARCH. Go's checksum database vouches for the sources. What is there already is not built again.
set -euo pipefail
mkdir -p "$1"
directory=$(cd "$1" && pwd)
export GOWORK=off GOFLAGS=-trimpath CGO_ENABLED=0
unset GOBIN

# type name module version
plugins='
auth jwt github.com/hashicorp/vault-plugin-auth-jwt v0.26.1
auth oidc github.com/hashicorp/vault-plugin-auth-jwt v0.26.1
auth kubernetes github.com/hashicorp/vault-plugin-auth-kubernetes v0.23.1
secret kubernetes github.com/hashicorp/vault-plugin-secrets-kubernetes v0.12.0
secret openldap github.com/hashicorp/vault-plugin-secrets-openldap v0.17.0
'

entries=()
while read -r type name module version; do
	test -n "$type" || continue
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
done <<<"$plugins"
(
	IFS=,
	echo "[${entries[*]}]"
) >"$directory/plugins.json.new"
mv "$directory/plugins.json.new" "$directory/plugins.json"
chmod -R go-w "$directory"
