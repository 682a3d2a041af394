#!/usr/bin/env bash
# Applies one regression of the hot path after the other to a copy of the tree, and fails
# if scripts/bench-check.sh passes with one of them.
set -euo pipefail
cd "$(dirname "$0")/.."

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

missed=0
for patch in "$PWD"/scripts/planted-regressions/*.patch; do
	name=$(head -1 "$patch")
	rm -rf "${tree:?}/copy"
	git clone --quiet --no-hardlinks . "$tree/copy"
	patch --quiet --strip=1 --forward --fuzz=0 --directory="$tree/copy" <"$patch"
	printf '== %s\n' "$name"
	if (cd "$tree/copy" && COUNT=${COUNT:-3} scripts/bench-check.sh HEAD) >"$tree/log" 2>&1; then
		echo "   NOT DETECTED"
		missed=$((missed + 1))
	elif ! grep WORSE "$tree/log" | sed 's/^/   /'; then
		cat "$tree/log" >&2
		echo "bench-check.sh did not run" >&2
		exit 2
	fi
done
if [ "$missed" -gt 0 ]; then
	echo "$missed planted regressions were not detected" >&2
	exit 1
fi
echo "every planted regression was detected"
