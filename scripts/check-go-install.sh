#!/usr/bin/env bash
# Installs the programs of the commit that is checked out with go install from their
# module path, as a user would once its tag is published, into an empty GOPATH:
#
#   scripts/check-go-install.sh [VERSION]
#
# A directory stands in for the module proxy that would serve the tag. All other
# modules come from this machine's cache, or from where go has them.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { printf 'check-go-install: %s\n' "$*" >&2; exit 1; }

stated=$(sed -n 's/^const Version = "\(.*\)"$/\1/p' internal/version/version.go)
version=${1:-v$stated}
module=$(go list -m)
mkdir -p dist
work=$(mktemp -d "$PWD/dist/go-install.XXXXXX")
finish() {
	chmod -R u+w "$work" # go makes what it downloads read-only
	rm -rf "$work"
}
trap finish EXIT

# A clone of its own, since this may be a linked work tree, which modproxy's library
# does not take for a repository.
git clone --quiet --shared --no-checkout "$PWD" "$work/clone"
go -C tools run ./modproxy "$work/clone" "$version" "$work/proxy"
served=file://$work/proxy,file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)

# Outside of any module, with nothing but what a user has. The modules' sums were
# compared with go.sum when they came into the cache. Without cgo, since that
# compiles no more than make release has compiled already.
mkdir "$work/empty"
cd "$work/empty"
env GOPATH="$work/gopath" GOMODCACHE= GOBIN= GOFLAGS=-trimpath GOWORK=off CGO_ENABLED=0 \
	GOPROXY="$served" GONOPROXY=none GONOSUMDB='*' go install "$module/cmd/...@latest" >"$work/log" 2>&1 ||
	fail "go install $module/cmd/...@latest: $(cat "$work/log")"
cd - >/dev/null
for dir in cmd/*/; do
	program=$(basename "$dir")
	[ -x "$work/gopath/bin/$program" ] || fail "go install has made no $program"
	said=$("$work/gopath/bin/$program" --version)
	case $program:$said in
	*" ${version#v}" | *" $stated ("*) printf '   %s\n' "$said" ;;
	etcd:*) ;; # says etcd's version
	*) fail "$program --version says: $said" ;;
	esac
done
