#!/usr/bin/env bash
# Builds container images from a static binary, without root, a daemon or a network: an archive for `docker load`, `podman load` or
# `crane push`. The variant "debug" has busybox in /bin besides (BUSYBOX names a static one). The same input makes the same image.
#   NAME=registry.example.com/coffer:1.2.3 .ci/tools/image.sh dist/coffer_1.2.3_linux_amd64 image.tar [debug]
# With a directory of plugins in PLUGINS, the image has those, too.
set -euo pipefail
binary=$(realpath "$1") out=$(realpath -m "$2") variant=${3:-plain}
test -z "${PLUGINS:-}" || PLUGINS=$(realpath "$PLUGINS")
BUSYBOX=$(realpath -m "${BUSYBOX:-/bin/busybox}")
arch=${GOARCH:-$(go env GOARCH)} authorities=${CA_CERTIFICATES:-/etc/ssl/certs/ca-certificates.crt}
case $variant in plain | debug) ;; *) echo "image: unknown variant $variant: leave it out, or say debug" >&2; exit 1 ;; esac
cd "$(dirname "$0")/image"

work=$(mktemp -d) registry=
trap 'test -z "$registry" || kill "$registry"; rm -rf "$work"' EXIT
GOWORK=off GOOS= GOARCH= go build -trimpath -o "$work/crane" github.com/google/go-containerregistry/cmd/crane

root=$work/root
mkdir -p "$root"/{usr/bin,etc/ssl/certs,etc/coffer,tmp}
install -m 0755 "$binary" "$root/usr/bin/coffer"
install -m 0644 "$authorities" "$root/etc/ssl/certs/ca-certificates.crt"
printf 'coffer:x:65532:65532::/:/sbin/nologin\n' >"$root/etc/passwd"
if test -n "${PLUGINS:-}"; then cp -rL "$PLUGINS" "$root/usr/bin/plugins"; fi
if test "$variant" = debug; then
	install -D -m 0755 "$BUSYBOX" "$root/bin/busybox"
	for name in $("$root/bin/busybox" --list); do test "$name" = busybox || ln -s busybox "$root/bin/$name"; done
fi
chmod -R u=rwX,go=rX "$root"
chmod 1777 "$root/tmp"
pack=(tar --sort=name --mtime=@0 --numeric-owner --format=gnu)
"${pack[@]}" --owner=0 --group=0 -C "$root" -cf "$work/layer.tar" .
# The directories of the server belong to its user.
mkdir -p -m 0700 "$work"/data/var/lib/coffer{,-audit}
"${pack[@]}" --owner=65532 --group=65532 -C "$work/data" -rf "$work/layer.tar" ./var/lib/coffer ./var/lib/coffer-audit

# crane changes the settings of images in registries only: this one is on loopback and ends with the script.
"$work/crane" registry serve --address 127.0.0.1:0 >"$work/log" 2>&1 &
registry=$!
for _ in $(seq 100); do
	port=$(grep -aom1 'port [0-9]*' "$work/log" | cut -d' ' -f2) && break
	sleep 0.1
done
image=127.0.0.1:${port:?the registry did not start}/coffer
"$work/crane" append --oci-empty-base -f "$work/layer.tar" -t "$image" >/dev/null 2>&1
"$work/crane" mutate "$image" --set-platform "linux/$arch" --entrypoint /usr/bin/coffer --cmd server,-config=/etc/coffer --user 65532:65532 \
	--exposed-ports 8200/tcp,8201/tcp --tag "$image" >/dev/null 2>&1
"$work/crane" pull "$image" "$work/image.tar"
mkdir "$work/image"
tar -xf "$work/image.tar" -C "$work/image"
sed -i "s#\"$image:latest\"#\"${NAME:-coffer:latest}\"#" "$work/image/manifest.json"
(cd "$work/image" && "${pack[@]}" --owner=0 --group=0 --mode=0644 -cf "$out" -- *)
echo "image: $out, $variant, linux/$arch"
