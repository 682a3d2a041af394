#!/usr/bin/env bash
# Fails if the hot path is slower than in the base commit. Runs the micro-benchmarks
# of this tree and of the base alternately on this machine, and compares them with
# bench/gate.
#
#   scripts/bench-check.sh [BASE]
#
# BASE is a commit; the default is the merge base with the main branch, or on the
# main branch the previous commit. COUNT (default 5) is the number of runs of each
# benchmark, doubled if a result seems worse. TIME is the factor of the time from
# which a benchmark fails (default 1.5; 0 disables it).
set -euo pipefail
cd "$(dirname "$0")/.."

count=${COUNT:-5}
slower=${TIME:-1.5}

# Folder of the package, pattern of its benchmarks, and time of each (default 100ms).
# Benchmarks with many instances open connections while they run; the more requests
# they send, the less these count for each.
benchmarks='
internal/openai Parse|Events
internal/openai/jsonscan Text/(20_bytes|64KiB_(prose|code|Chinese))$
internal/sched Pick|Prepare/1000$
internal/forward Request
internal/forward Wire 2000x
internal/upstream (Small|Stream64|Body64KiB|Body1MiB)/own
internal/forward AccessLog
internal/metrics Done
internal/discovery/watch Build/instances=1000$|Change/.*/1000$
'

base_of() {
	local main head
	head=$(git rev-parse HEAD)
	for main in origin/main main; do
		if base=$(git merge-base "$main" HEAD 2>/dev/null) && [ "$base" != "$head" ]; then
			echo "$base"
			return
		fi
	done
	if ! git diff --quiet HEAD; then
		echo "$head" # uncommitted changes are compared with HEAD
		return
	fi
	git rev-parse HEAD~1
}

base=${1:-$(base_of)}
base=$(git rev-parse --verify "$base^{commit}")
dir=$(mktemp -d)
cleanup() {
	git worktree remove --force "$dir/base" 2>/dev/null || true
	rm -rf "$dir"
}
trap cleanup EXIT
git worktree add --quiet --detach "$dir/base" "$base"

printf 'comparing with %s\n' "$(git log -1 --format='%h %s' "$base")"
build() { # build TREE NAME
	local package rest
	while read -r package rest; do
		[ -n "$package" ] || continue
		if [ -d "$1/$package" ] && [ ! -e "$dir/$2-${package//\//-}.test" ]; then
			(cd "$1" && CGO_ENABLED=0 go test -c -o "$dir/$2-${package//\//-}.test" "./$package")
		fi
	done <<<"$benchmarks"
}
build . new
build "$dir/base" base

measure() {
	for _ in $(seq "$count"); do
		for side in base new; do
			while read -r package pattern long; do
				[ -n "$package" ] || continue
				binary="$dir/$side-${package//\//-}.test"
				[ -x "$binary" ] || continue
				tree=.
				[ "$side" = new ] || tree="$dir/base"
				(cd "$tree/$package" && "$binary" -test.run '^$' -test.bench "$pattern" -test.benchmem -test.benchtime "${long:-100ms}") >>"$dir/$side.txt"
			done <<<"$benchmarks"
		done
	done
}
judge() { go run ./bench/gate -time "$slower" "$dir/base.txt" "$dir/new.txt"; }

# A chance result is unlikely to persist with twice as many runs.
measure
judge || {
	echo "worse; running the benchmarks again to confirm"
	measure
	judge
}
