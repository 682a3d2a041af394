#!/usr/bin/env bash
# Runs the tests, for make test and make test-long.
#
#   scripts/test.sh         all tests, long ones in their short form
#   scripts/test.sh long    what that omits: the long forms, the data path over net/http,
#                           and the packages whose socket code the race detector replaces
#
# Tests of whole programs mostly wait, so they run concurrently with the others. The
# programs are built once, without the race detector. Tests that only start them therefore
# use it in the long form only.
#
#   PACKAGES       packages to test, default ./...
#   TESTFLAGS      passed to go test, e.g. '-run TestWatcher -count=5'
#   TEST_TIMEOUT   of one package, default 15m
#   REQUIRE_RACE   1 fails if the race detector is not available
#   PD_TEST_BIN    directory of the programs, default a temporary one; they are built into it
#                  unless it exists
set -euo pipefail
cd "$(dirname "$0")/.."

GO=${GO:-go}
read -ra packages <<<"${PACKAGES:-./...}"
read -ra flags <<<"${TESTFLAGS:-}"
cores=$(nproc 2>/dev/null || echo 2)
# More concurrent tests than processors, because most tests mostly wait. make vet covers
# what go test would vet, and test programs need no debug information.
flags=(-vet=off '-ldflags=-s -w' -shuffle=on -timeout "${TEST_TIMEOUT:-15m}" -parallel $((3 * cores)) "${flags[@]}")

# A program with the race detector sleeps before it exits, 1 s by default, to report races
# of other goroutines. With a hundred packages that adds up.
race=(env CGO_ENABLED=1 "GORACE=${GORACE:-atexit_sleep_ms=50}" "$GO" test -race)
plain=(env CGO_ENABLED=0 "$GO" test)
# The race detector needs cgo, and cgo a C compiler that finds its headers.
if ! printf '#include <stdlib.h>\nint main(void){return 0;}\n' | "$($GO env CC)" -x c -o /dev/null - 2>/dev/null; then
	case ${REQUIRE_RACE:-} in 1 | on | true | yes)
		echo "REQUIRE_RACE is set, but there is no working C compiler (tried: $($GO env CC)); install gcc and the headers of the C library" >&2
		exit 1
		;;
	esac
	echo "NOTE: no working C compiler, so the tests run WITHOUT the race detector (install gcc and the headers of the C library)"
	race=("${plain[@]}")
fi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

module=$($GO list -m)
# among prints the given packages that are in PACKAGES, in the given order.
$GO list "${packages[@]}" | sed "s|^$module|.|" >"$dir/all"
among() { printf '%s\n' "$@" | grep -xF -f "$dir/all" || true; }

# Tests of whole programs and simulations, the slow ones first.
mapfile -t whole < <(among ./test/faults ./test/e2e ./test/browser ./test/migrate
	grep -E '^\./(test/|scripts$|bench/(command|ground)$)' "$dir/all" | grep -vxE '\./test/(faults|e2e|browser|migrate)' || true)
mapfile -t inside < <(among ./internal/forward
	grep -E '^\./internal/(discovery|agent|pdctl|proxy)' "$dir/all" || true
	grep -vE '^\./(test/|scripts$|bench/(command|ground)$|internal/(forward$|discovery|agent|pdctl|proxy))' "$dir/all" || true)

if [ ${#whole[@]} -gt 0 ]; then
	export PD_TEST_BIN=${PD_TEST_BIN:-$dir/bin}
	if [ ! -d "$PD_TEST_BIN" ]; then
		mkdir "$PD_TEST_BIN"
		CGO_ENABLED=0 $GO build -ldflags '-s -w' -o "$PD_TEST_BIN/" ./cmd/...
		scripts/long-names.sh "$PD_TEST_BIN"
	fi
fi

short() {
	local code=0 other=
	if [ ${#whole[@]} -gt 0 ]; then
		"${plain[@]}" "${flags[@]}" "${whole[@]}" &
		other=$!
	fi
	if [ ${#inside[@]} -gt 0 ]; then
		"${race[@]}" -p $((cores + 1)) "${flags[@]}" "${inside[@]}" || code=1
	fi
	if [ -n "$other" ]; then
		wait "$other" || code=1
	fi
	return $code
}

# long_forms CMD REGEXP [EXCEPT] runs the long form of the tests that the short form shortens or
# skips, in the packages that match REGEXP and not EXCEPT.
long_forms() {
	local -n run=$1
	local package tests code=0
	while read -r package tests; do
		[ -n "$(among "$package")" ] || continue
		echo "long form: $package $tests"
		PD_TEST_LONG=1 "${run[@]}" -run "$tests" "${flags[@]}" "$package" </dev/null || code=1
	done < <(scripts/long-tests.sh | grep -E "$2" | grep -vE "${3:-^$}")
	return $code
}

# again runs the command cmd for its packages that are in PACKAGES.
again() {
	local what=$1 list
	shift
	mapfile -t list < <(among "$@")
	[ ${#list[@]} -gt 0 ] || return 0
	echo "$what: ${list[*]}"
	"${cmd[@]}" "${flags[@]}" "${list[@]}"
}

long() {
	local code=0 others=() other
	long_forms race '^\./test/faults ' &
	others+=($!)
	{
		code=0
		# Simulations compute.
		long_forms plain '^\./(bench/|internal/sched/keylimit )' || code=1
		long_forms race '^\./test/' '^\./test/faults ' || code=1
		cmd=(env PD_TEST_UPSTREAM=std "${plain[@]}")
		again "over net/http" ./test/e2e || code=1
		exit $code
	} &
	others+=($!)
	{
		code=0
		long_forms race '^\./internal/discovery/' || code=1
		# The race detector supports only the calls of package syscall, which therefore replace
		# those of package sock in a build with it.
		cmd=("${plain[@]}")
		again "without the race detector" ./internal/transport/sock ./internal/transport/upstream ./internal/forward || code=1
		exit $code
	} &
	others+=($!)
	long_forms race '^\./internal/' '^\./internal/(discovery/|sched/keylimit )' || code=1
	# Not in the long form, which does not concern connections.
	cmd=(env PD_TEST_UPSTREAM=std "${race[@]}")
	again "over net/http" ./internal/forward || code=1
	for other in "${others[@]}"; do
		wait "$other" || code=1
	done
	return $code
}

case ${1:-short} in
short) short ;;
long) long ;;
*)
	echo "usage: $0 [long]" >&2
	exit 2
	;;
esac
