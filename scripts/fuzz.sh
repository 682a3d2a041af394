#!/usr/bin/env bash
# Runs every fuzz target, each for FUZZTIME (default 5m; 1000x is a number of executions),
# and fails behind the last one if any found something. Targets are those that their
# package's test program lists, so a new one needs no entry anywhere.
#
#   FUZZ=regexp     only targets whose name matches, e.g. FUZZ=FuzzRelay
#   PARALLEL=n      workers of a target, default 1
#   JOBS=n          packages at a time, default as many as there are processors
#   GUIDED=0        without the counters that tell what is new: everything below a package
#                   would have to be compiled for them, which a brief run does not pay back
#
# What is found becomes a file in the package's testdata/fuzz, which a plain
# `go test` runs from then on: commit it together with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."

export FUZZTIME=${FUZZTIME:-5m} FUZZ=${FUZZ:-^Fuzz} PARALLEL=${PARALLEL:-1} GUIDED=${GUIDED:-1}

# one FOLDER runs the targets of a package. Its program is built once for all of them.
one() {
	local folder=$1 program cache targets target start status execs new result counters=()
	[ "$GUIDED" = 0 ] || counters=(-fuzz '^Fuzz')
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' EXIT
	program=$dir/fuzz.test
	cache=$(go env GOCACHE)/fuzz/$(go list "$folder")
	go test -vet=off -c "${counters[@]}" -o "$program" "$folder"
	cd "$folder"
	targets=$("$program" -test.list '^Fuzz')
	for target in $targets; do
		[[ $target =~ $FUZZ ]] || continue
		start=$SECONDS
		# A short minimize time: without it half of the run goes into making
		# interesting inputs smaller.
		"$program" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$FUZZTIME" -test.fuzzminimizetime 1s \
			-test.fuzzcachedir "$cache" -test.parallel "$PARALLEL" >"$dir/log" 2>&1 && status=0 || status=$?
		execs=$(sed -n 's/.* execs: \([0-9]*\) .*/\1/p' "$dir/log" | tail -1)
		new=$(sed -n 's/.*new interesting: \([0-9]*\) .*/\1/p' "$dir/log" | tail -1)
		result=ok
		[ "$status" -eq 0 ] || result=FOUND
		printf '%-24s %-24s %12s %10s %8s  %s\n' "${folder#./}" "$target" "${execs:-0}" "${new:-0}" $((SECONDS - start)) "$result"
		[ "$status" -eq 0 ] || sed '/^fuzz: elapsed/d' "$dir/log"
	done
}
if [ "${1:-}" = --package ]; then
	one "$2"
	exit
fi

packages=$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -r -n1 dirname | sort -u)
[ -n "$packages" ] || { echo "no fuzz targets" >&2; exit 1; }

said=$(mktemp)
trap 'rm -f "$said"' EXIT
printf '%-24s %-24s %12s %10s %8s  %s\n' package target executions new seconds result
status=0
xargs -n1 -P "${JOBS:-$(nproc 2>/dev/null || echo 2)}" "$0" --package <<<"$packages" | tee "$said" || status=1

ran=$(grep -cE ' (ok|FOUND)$' "$said" || true)
found=$(grep -cE ' FOUND$' "$said" || true)
if [ "$status" -ne 0 ]; then
	echo "not all targets could be run" >&2
	exit 1
fi
if [ "$ran" -eq 0 ]; then
	echo "no fuzz target matches $FUZZ" >&2
	exit 1
fi
if [ "$found" -gt 0 ]; then
	echo "$found of $ran targets found something; see testdata/fuzz in their packages" >&2
	exit 1
fi
echo "$ran targets, nothing found"
