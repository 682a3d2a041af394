#!/usr/bin/env bash
# Installs the programs of the checked-out commit with go install from their module
# path into an empty GOPATH, as a user does once the tag is published:
#
#   scripts/check-go-install.sh [VERSION]
#
# git reads a clone of this repository instead of the published one. All other modules
# come from the module cache of this machine, or from GOPROXY.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { printf 'check-go-install: %s\n' "$*" >&2; exit 1; }

stated=$(sed -n 's/^const Version = "\(.*\)"$/\1/p' internal/cli/version/version.go)
version=${1:-v$stated}
module=$(go list -m)
mkdir -p dist
work=$(mktemp -d "$PWD/dist/go-install.XXXXXX")
finish() {
	chmod -R u+w "$work" # go makes downloaded files read-only
	rm -rf "$work"
}
trap finish EXIT

# The only tag of the clone is that of the version, so it is @latest.
git clone --quiet --bare --shared --no-tags "$PWD" "$work/clone"
git -C "$work/clone" tag "$version" "$(git rev-parse HEAD)"
served=file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)

# Runs outside of any module. The sums of the modules were compared with go.sum when
# they were downloaded into the cache. Without cgo, the packages that make release
# compiled are reused.
mkdir "$work/empty"
cd "$work/empty"
env GOPATH="$work/gopath" GOMODCACHE= GOBIN= GOFLAGS=-trimpath GOWORK=off CGO_ENABLED=0 \
	GOPROXY="$served" GONOPROXY="$module" GONOSUMDB='*' \
	GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.file://$work/clone.insteadOf" GIT_CONFIG_VALUE_0="https://$module" go install "$module/cmd/...@latest" >"$work/log" 2>&1 ||
	fail "go install $module/cmd/...@latest: $(cat "$work/log")"
cd - >/dev/null
for dir in cmd/*/; do
	program=$(basename "$dir")
	[ -x "$work/gopath/bin/$program" ] || fail "go install did not install $program"
	printed=$("$work/gopath/bin/$program" --version)
	case $program:$printed in
	*" ${version#v}" | *" $stated ("*) printf '   %s\n' "$printed" ;;
	etcd:*) ;; # prints the version of etcd
	*) fail "$program --version printed: $printed" ;;
	esac
done
