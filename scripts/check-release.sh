#!/usr/bin/env bash
# Tests the files of make release in dist/release as a user would use them: checksums,
# archive, container image, Debian package (scripts/check-deb.sh, as root), and go install
# from the module path (scripts/check-go-install.sh). Files for another architecture are
# unpacked and inspected.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { printf 'check-release: %s\n' "$*" >&2; exit 1; }
step() { printf '== %s\n' "$*"; }

files=$PWD/dist/release
[ -f "$files/SHA256SUMS" ] || fail "$files does not exist: run make release"
mkdir -p dist
work=$(mktemp -d "$PWD/dist/check-release.XXXXXX")
trap 'rm -rf "$work"' EXIT
here=$(go env GOARCH)
stated=$(sed -n 's/^const Version = "\(.*\)"$/\1/p' internal/cli/version/version.go)

# one PATTERN: prints the path of the only file that matches.
one() {
	local -a found
	mapfile -t found < <(compgen -G "$files/$1")
	[ ${#found[@]} = 1 ] || fail "${#found[@]} files match $1, want 1"
	printf '%s' "${found[0]}"
}

# static FILE ARCH [OS]: fails if FILE is not a static program for ARCH, or has a path of
# this machine in it.
static() {
	local info
	info=$(go version -m "$1")
	for want in 'CGO_ENABLED=0' "GOARCH=$2" "GOOS=${3:-linux}" '-trimpath=true'; do
		grep -q -- "$want" <<<"$info" || fail "$1 was not built with $want"
	done
	! grep -q -e "$PWD" -e "$HOME/" "$1" || fail "$1 contains a path of this machine"
}

step "checksums"
(cd "$files" && sha256sum --check --quiet SHA256SUMS)
[ "$(cd "$files" && find . -type f ! -name SHA256SUMS | wc -l)" = "$(wc -l <"$files/SHA256SUMS")" ] || fail "SHA256SUMS does not list every file"

for archive in "$files"/*_linux_*.tar.gz; do
	arch=${archive##*_linux_}
	arch=${arch%.tar.gz}
	step "archive for linux/$arch"
	tar -C "$work" -xzf "$archive"
	top=$work/$(basename "$archive" .tar.gz)
	for program in pdmesh-proxy pdmesh-agent pdctl fakevllm demo replay etcd; do
		static "$top/bin/$program" "$arch"
		grep -q '"bomFormat": "CycloneDX"' "$top/sbom/$program.cdx.json" || fail "no SBOM of $program"
		[ "$arch" = "$here" ] || continue
		printed=$("$top/bin/$program" --version)
		[ "$program" = etcd ] || grep -q " $stated" <<<"$printed" || fail "$program --version printed: $printed"
	done
	# Agents and pdctl run on every node, so they must not link the etcd server.
	for program in pdmesh-agent pdctl; do
		! grep -q 'go.etcd.io/etcd/server' "$top/sbom/$program.cdx.json" || fail "$program links the etcd server"
	done
	grep -q 'go.etcd.io/etcd/server' "$top/sbom/pdmesh-proxy.cdx.json" || fail "the SBOM of the proxy does not list etcd"
	# README.md and its pages name these.
	for name in README.md CHANGELOG.md LICENSE THIRD_PARTY_LICENSES docker-compose.yml docs/deploy.md deploy/systemd/pdmesh-proxy.service \
		'deploy/systemd/pdmesh-agent@.service' scripts/register-node.sh; do
		[ -s "$top/$name" ] || fail "the archive has no $name"
	done
	if [ "$arch" = "$here" ]; then
		step "demo from the archive"
		for fleet in "" "--proxies=2 --etcd=3"; do
			# shellcheck disable=SC2086 # a list of flags
			"$top/bin/demo" --once $fleet >"$work/demo.log" 2>&1 || fail "bin/demo --once $fleet: $(cat "$work/demo.log")"
		done
	fi
done

for archive in $(compgen -G "$files/pdctl_*_darwin_*.tar.gz"); do
	arch=${archive##*_darwin_}
	arch=${arch%.tar.gz}
	step "pdctl for darwin/$arch"
	tar -C "$work" -xzf "$archive"
	static "$work/$(basename "$archive" .tar.gz)/pdctl" "$arch" darwin
done

for image in "$files"/*_image.tar; do
	arch=${image##*_linux_}
	arch=${arch%_image.tar}
	step "image for linux/$arch"
	root=$work/image_$arch
	go -C tools run ./image unpack "$image" "$root" >"$work/image.txt"
	cat "$work/image.txt"
	grep -q "^platform linux/$arch\$" "$work/image.txt" || fail "the image is for another platform"
	for program in pdmesh-proxy pdmesh-agent pdctl fakevllm; do
		static "$root/usr/local/bin/$program" "$arch"
	done
	if [ "$arch" = "$here" ] && [ "$(id -u)" = 0 ]; then
		scripts/check-image.sh "$root" "$work/image.txt"
	fi
done

step "go install into an empty GOPATH"
scripts/check-go-install.sh

if [ "$(id -u)" = 0 ]; then
	step "Debian package on a clean Debian"
	scripts/check-deb.sh "$(one "pdmesh_*_$(dpkg --print-architecture).deb")"
else
	fail "not root: the image was not run and the Debian package was not installed"
fi
step "all files of dist/release passed"
