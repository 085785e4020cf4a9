#!/usr/bin/env bash
# Builds a release of the committed source into dist/: binaries for PLATFORMS, an SBOM of each, the plugins
# that come with those for Linux, LICENSE, NOTICE and checksums. Each
# binary is built twice, in two directories, once with the build cache and once without, and must come out the same.
#   RELEASE=1.2.3 PLATFORMS="linux/amd64 darwin/arm64" .ci/tools/release.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
release=${RELEASE:-$(git describe --tags --always --dirty)}
release=${release#v}
commit=$(git rev-parse HEAD)
PLATFORMS=${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64}

# What a build depends on is the source, the toolchain and what follows. Nothing else of the environment counts.
export GOWORK=off GOFLAGS=-mod=readonly GOENV=off CGO_ENABLED=0 GOAMD64=v1 GOARM64=v8.0 GOEXPERIMENT=
toolchain=$(awk '$1 == "toolchain" { print $2 }' go.mod)
if GOTOOLCHAIN=$toolchain go version >/dev/null 2>&1; then
	export GOTOOLCHAIN=$toolchain
else
	echo "release: $toolchain, which go.mod names, cannot be had here; building with $(go env GOVERSION)" >&2
fi

work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
# binary DIRECTORY OUTPUT builds the commit in a directory of its own.
binary() {
	mkdir -p "$work/$1"
	git archive "$commit" | tar -x -C "$work/$1"
	go build -C "$work/$1" -trimpath -buildvcs=false -ldflags "-s -w -X main.release=$release" -o "$2" ./cmd/coffer
}

(cd .ci/tools && go build -o "$work/" github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod)
rm -rf dist
mkdir dist
for platform in $PLATFORMS; do
	export GOOS=${platform%/*} GOARCH=${platform#*/}
	name=coffer_${release}_${GOOS}_$GOARCH
	binary a "$root/dist/$name"
	GOCACHE=$work/cache binary another/directory "$work/$name"
	cmp "dist/$name" "$work/$name" || { echo "release: two builds of $name differ" >&2; exit 1; }
	"$work/cyclonedx-gomod" bin -json -std -licenses -noserial -version "v$release" -output "dist/$name.cdx.json" "dist/$name" 2>"$work/log" ||
		{ cat "$work/log" >&2; exit 1; }
	echo "release: $name, the same from two builds with $(go version "dist/$name" | cut -d' ' -f2)"
	rm -rf "$work/$name"
	if test "$GOOS" = linux; then # others do not run plugins
		.ci/tools/plugins.sh "$work/$name.plugins/plugins"
		tar -C "$work/$name.plugins" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - plugins | gzip -n >"dist/${name}_plugins.tar.gz"
		rm -rf "$work/$name.plugins"
	fi
done
cp LICENSE NOTICE dist/
(cd dist && sha256sum -- * >sha256sums)
