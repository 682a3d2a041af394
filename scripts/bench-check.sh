#!/usr/bin/env bash
# Fails if a change makes the hot path slower. It runs the Go benchmarks of this tree and of
# the commit that it is based on, in turns on this machine, and compares them with bench/gate.
#
#   scripts/bench-check.sh [BASE]
#
# BASE is a commit; the default is the merge base with the main branch, or on the main branch
# the commit before. COUNT is the number of runs of each benchmark (default 5), which is
# doubled if a benchmark seems to be worse. TIME is the permitted ratio of times (default 1.5;
# 0 does not compare times).
set -euo pipefail
cd "$(dirname "$0")/.."

count=${COUNT:-5}
slower=${TIME:-1.5}

# Folder of a package, its benchmarks, and their -benchtime (default 100ms). Wire has a fixed
# number of requests, because it opens connections to many instances on the way.
benchmarks='
internal/openai Parse|Events
internal/openai/jsonscan Text/(20_bytes|64KiB_(prose|code|Chinese))$
internal/sched Pick|Prepare/1000$
internal/forward Request
internal/forward Wire 2000x
internal/transport/upstream (Small|Stream64|Body64KiB|Body1MiB)/own
internal/forward AccessLog
internal/observe/metrics Done
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
		echo "$head" # compares uncommitted changes with the last commit
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

# Chance hardly affects twice as many runs in the same way.
measure
judge || {
	echo "repeating the measurement"
	measure
	judge
}
