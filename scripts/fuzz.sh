#!/usr/bin/env bash
# Runs every fuzz target for FUZZTIME (default 5m; 1000x is a number of executions), and
# fails at the end if one of them found a failure. The targets are those that the test
# programs list, so a new one needs no entry here.
#
#   FUZZ=regexp     only targets whose name matches, e.g. FUZZ=FuzzRelay
#   PARALLEL=n      workers of a target, default 1
#   JOBS=n          concurrent packages, default the number of processors
#   GUIDED=0        without coverage counters, for which all dependencies of a package
#                   would have to be compiled; this does not pay for a short run
#
# A failing input becomes a file in testdata/fuzz of the package, which `go test` runs
# from then on: commit it with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."

export FUZZTIME=${FUZZTIME:-5m} FUZZ=${FUZZ:-^Fuzz} PARALLEL=${PARALLEL:-1} GUIDED=${GUIDED:-1}

# one FOLDER runs the targets of a package, with one build of its test program.
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
		# A short minimize time: with the default, minimizing inputs takes half of the
		# run.
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

# Only packages with such a target are compiled.
packages=$(grep -ro --include='*_test.go' '^func Fuzz[[:alnum:]_]*' . | while IFS=: read -r file target; do
	if [[ ${target#func } =~ $FUZZ ]]; then dirname "$file"; fi
done | sort -u)
[ -n "$packages" ] || { echo "no fuzz target matches $FUZZ" >&2; exit 1; }

results=$(mktemp)
trap 'rm -f "$results"' EXIT
printf '%-24s %-24s %12s %10s %8s  %s\n' package target executions new seconds result
status=0
xargs -n1 -P "${JOBS:-$(nproc 2>/dev/null || echo 2)}" "$0" --package <<<"$packages" | tee "$results" || status=1

ran=$(grep -cE ' (ok|FOUND)$' "$results" || true)
found=$(grep -cE ' FOUND$' "$results" || true)
if [ "$status" -ne 0 ]; then
	echo "not all targets could be run" >&2
	exit 1
fi
if [ "$found" -gt 0 ]; then
	echo "$found of $ran targets found failures; see testdata/fuzz in their packages" >&2
	exit 1
fi
echo "$ran targets, no failures"
