#!/usr/bin/env bash
# Runs every fuzz target in turn, each for FUZZTIME (default 5m; 1000x is a
# number of executions), and fails behind the last one if any found something.
# Targets are those that `go test -list` knows, so a new one needs no entry
# anywhere.
#
#   FUZZ=regexp     only targets whose name matches, e.g. FUZZ=FuzzRelay
#   PARALLEL=n      workers of a target, default 1
#
# What is found becomes a file in the package's testdata/fuzz, which a plain
# `go test` runs from then on: commit it together with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."

time=${FUZZTIME:-5m}
only=${FUZZ:-^Fuzz}
parallel=${PARALLEL:-1}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

packages=$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -r -n1 dirname | sort -u)
[ -n "$packages" ] || { echo "no fuzz targets" >&2; exit 1; }

ran=0 found=0
printf '%-24s %-16s %12s %10s %8s  %s\n' package target executions new seconds result
for package in $packages; do
	# With -fuzz, so that listing builds the very program that then runs.
	if ! targets=$(go test -fuzz '^Fuzz' -list '^Fuzz' "$package" 2>"$log"); then
		cat "$log" >&2
		exit 1
	fi
	for target in $targets; do
		[[ $target == Fuzz* && $target =~ $only ]] || continue
		start=$SECONDS
		# A short minimize time: without it half of the run goes into making
		# interesting inputs smaller.
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 1s -parallel "$parallel" "$package" >"$log" 2>&1 && status=0 || status=$?
		execs=$(sed -n 's/.* execs: \([0-9]*\) .*/\1/p' "$log" | tail -1)
		new=$(sed -n 's/.*new interesting: \([0-9]*\) .*/\1/p' "$log" | tail -1)
		result=ok
		if [ "$status" -ne 0 ]; then
			result=FOUND
			found=$((found + 1))
		fi
		ran=$((ran + 1))
		printf '%-24s %-16s %12s %10s %8s  %s\n' "${package#./}" "$target" "${execs:-0}" "${new:-0}" $((SECONDS - start)) "$result"
		[ "$status" -eq 0 ] || sed '/^fuzz: elapsed/d' "$log"
	done
done

if [ $ran -eq 0 ]; then
	echo "no fuzz target matches $only" >&2
	exit 1
fi
if [ $found -gt 0 ]; then
	echo "$found of $ran targets found something; see testdata/fuzz in their packages" >&2
	exit 1
fi
echo "$ran targets, nothing found"
