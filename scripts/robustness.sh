#!/usr/bin/env bash
# Runs test/robustness: SEEDS seeds of DURATION each, from FIRST (default 1) on, or the one SEED.
# OLD=<commit> builds the programs of that commit and runs them beside the present ones.
set -euo pipefail
cd "$(dirname "$0")/.."

first=${FIRST:-1} seeds=${SEEDS:-8}
if [ -n "${SEED:-}" ]; then
	first=$SEED seeds=1
fi
if [ -n "${OLD:-}" ]; then
	old=$(mktemp -d)
	trap 'rm -rf "$old"' EXIT
	mkdir "$old/bin" "$old/tree"
	git archive "$OLD" | tar -x -C "$old/tree"
	(cd "$old/tree" && CGO_ENABLED=0 go build -trimpath -o "$old/bin/" ./cmd/proxy ./cmd/agent ./cmd/pdctl)
	export PD_ROBUSTNESS_OLD=$old/bin
	echo "older programs: $(git log -1 --format='%h %s' "$OLD")"
fi
mkdir -p dist/robustness
echo "seeds $first to $((first + seeds - 1)), ${DURATION:-60s} each"
# shellcheck disable=SC2086 # several flags of go test
PD_ROBUSTNESS_FIRST=$first PD_ROBUSTNESS_SEEDS=$seeds PD_ROBUSTNESS_DURATION=${DURATION:-60s} \
	PD_ROBUSTNESS_DIR=${PD_ROBUSTNESS_DIR:-$PWD/dist/robustness} \
	go test -count=1 -timeout 0 -v ${TESTFLAGS:-} -run 'TestRobustness$' ./test/robustness | grep -v '^=== '
