#!/usr/bin/env bash
# Writes the files of a release to dist/release: archives of static programs, Debian
# packages, container images, SBOMs and checksums. See RELEASING.md.
#
#   scripts/release.sh             for this commit; named after it unless it is tagged
#   scripts/release.sh v0.1.0      for a release; fails unless the tree is clean and
#                                  internal/cli/version has that version
#
# RELEASE_ARCHES="amd64 arm64" are the architectures for Linux, RELEASE_DARWIN="amd64
# arm64" those of pdctl for macOS.
#
# The build is reproducible: the same commit and the same Go version produce the same
# files. All file times are that of the commit, and all owners are 0.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly NFPM=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
readonly CYCLONEDX=github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
readonly PROGRAMS=(proxy agent pdctl fakevllm demo replay etcd)

arches=${RELEASE_ARCHES-amd64 arm64}
darwin=${RELEASE_DARWIN-amd64 arm64}
out=$PWD/dist/release
work=$PWD/dist/release-work

# Override build settings of this machine.
export GOFLAGS='' GOEXPERIMENT='' GOAMD64=v1 GOARM64=v8.0

fail() { printf 'release: %s\n' "$*" >&2; exit 1; }
step() { printf '== %s\n' "$*"; }

# The version, without a v.
stated=$(sed -n 's/^const Version = "\(.*\)"$/\1/p' internal/cli/version/version.go)
commit=$(git describe --always --dirty --exclude='*' --abbrev=12)
SOURCE_DATE_EPOCH=$(git show -s --format=%ct HEAD)
export SOURCE_DATE_EPOCH
asked=${1:-}
if [ -n "$asked" ]; then
	[ "$asked" = "v$stated" ] || fail "VERSION is $asked, but internal/cli/version has $stated: use v$stated, or change it there first"
	[ -z "$(git status --porcelain)" ] || fail "the tree has uncommitted changes: commit them, or omit VERSION"
	version=$stated
elif [ "$(git describe --exact-match --match "v$stated" 2>/dev/null)" = "v$stated" ] && [ -z "$(git status --porcelain)" ]; then
	version=$stated
else
	version=$stated-dev.$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).$commit
fi

rm -rf "$out" "$work"
mkdir -p "$out" "$work"
trap 'rm -rf "$work"' EXIT

# build OS ARCH DIR PROGRAM...
build() {
	local os=$1 arch=$2 dir=$3
	shift 3
	mkdir -p "$dir"
	CGO_ENABLED=0 GOOS=$os GOARCH=$arch go build -trimpath -buildvcs=false \
		-ldflags "-s -w -X github.com/pdmesh/pdmesh/internal/cli/version.commit=$commit" \
		-o "$dir/" "${@/#/./cmd/}"
	[ "$os" = darwin ] || scripts/long-names.sh "$dir"
}

# pack NAME: packs $work/NAME into NAME.tar.gz.
pack() {
	tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
		--mode='u+rw,go=rX' --format=gnu -cf - "$1" | gzip -n >"$out/$1.tar.gz"
}

# licences FILE: writes the full licence texts of Go and of every linked module, which
# the licences require.
licences() {
	{
		printf 'Licences of Go and of the modules that are linked into the programs.\n\n==== Go\n\n'
		cat "$(go env GOROOT)/LICENSE"
		local path number dir files
		GOOS=linux CGO_ENABLED=0 go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' \
			"${PROGRAMS[@]/#/./cmd/}" | sort -u | while read -r path number dir; do
			mapfile -t files < <(find "$dir" -maxdepth 1 -type f \( -iname 'licen[sc]e*' -o -iname 'copying*' -o -iname 'notice*' \) | sort)
			[ ${#files[@]} -gt 0 ] || fail "$path $number has no licence file"
			printf '\n==== %s %s\n\n' "$path" "$number"
			cat "${files[@]}"
		done
	} >"$1"
}

# sbom BIN DIR PROGRAM...: writes the SBOM of each program, from its build information.
# It needs no network, because all modules are in the cache. SBOMs of the three programs
# of production nodes also list licences, which takes longer.
sbom() {
	local bin=$1 dir=$2 program
	local -a more
	shift 2
	mkdir -p "$dir"
	for program; do
		more=()
		case $program in
		proxy | agent) program=pdmesh-$program more=(-licenses) ;;
		pdctl) more=(-licenses) ;;
		esac
		GOPROXY=off GOSUMDB=off "$work/tools/cyclonedx-gomod" bin -json -std -noserial -notimestamp "${more[@]}" \
			-version "v$version" -output "$dir/$program.cdx.json" "$bin/$program" 2>>"$work/sbom.log" ||
			fail "SBOM of $program: $(cat "$work/sbom.log")"
	done
}

# unit FILE: prints a unit for the Debian package, with a permanent user, who can be given
# access to key files.
unit() {
	sed -e 's#^ExecStart=/usr/local/bin/#ExecStart=/usr/bin/#' \
		-e 's/^DynamicUser=yes$/User=pdmesh\nGroup=pdmesh/' "deploy/systemd/$1"
}

# documents DIR: copies documentation, units and scripts, with the paths of the
# repository, so that the commands of README.md work in the archive.
documents() {
	git ls-files -z -- README.md CHANGELOG.md LICENSE docker-compose.yml docs deploy/systemd deploy/kubernetes deploy/prometheus deploy/grafana \
		scripts/register-node.sh | xargs -0 cp --parents -t "$1"
	cp "$work/THIRD_PARTY_LICENSES" "$1/"
}

# tool PACKAGE@VERSION: installs a tool for this machine.
tool() { GOBIN=$work/tools CGO_ENABLED=0 go install -trimpath "$1"; }

step "release $version: tools"
tool "$NFPM"
tool "$CYCLONEDX"
CGO_ENABLED=0 go -C tools build -trimpath -buildvcs=false -o "$work/tools/image" ./image

step "licences"
licences "$work/THIRD_PARTY_LICENSES"

for arch in $arches; do
	step "linux/$arch"
	name=pdmesh_${version}_linux_$arch
	stage=$work/$name
	build linux "$arch" "$stage/bin" "${PROGRAMS[@]}"
	documents "$stage"
	sbom "$stage/bin" "$stage/sbom" "${PROGRAMS[@]}"
	pack "$name"

	mkdir -p "$stage/units"
	for file in pdmesh-proxy.service pdmesh-agent@.service; do
		unit "$file" >"$stage/units/$file"
	done
	STAGE=$stage ARCH=$arch VERSION=$version "$work/tools/nfpm" package -f deploy/debian/nfpm.yaml -p deb -t "$out/" >/dev/null

	"$work/tools/image" build --bin "$stage/bin" --arch "$arch" --out "$out/pdmesh_${version}_linux_${arch}_image.tar" \
		--tag pdmesh:latest --tag "pdmesh:$version" --doc LICENSE --doc "$work/THIRD_PARTY_LICENSES" \
		--version "$version" --revision "$commit" --created "$SOURCE_DATE_EPOCH"
	mkdir -p "$work/pdmesh_${version}_sbom"
	cp -r "$stage/sbom" "$work/pdmesh_${version}_sbom/linux_$arch"
done

for arch in $darwin; do
	step "darwin/$arch: pdctl"
	name=pdctl_${version}_darwin_$arch
	build darwin "$arch" "$work/$name" pdctl
	cp LICENSE "$work/THIRD_PARTY_LICENSES" "$work/$name/"
	sbom "$work/$name" "$work/pdmesh_${version}_sbom/darwin_$arch" pdctl
	pack "$name"
done

pack "pdmesh_${version}_sbom"
(cd "$out" && sha256sum -- * >SHA256SUMS)
step "$out"
(cd "$out" && du -ah -- * | sort -k2)
