#!/usr/bin/env bash
# Does the gate notice? Plants one regression of the hot path after the other
# into a copy of the tree and expects scripts/bench-check.sh to fail for it.
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
		echo "   NOT NOTICED"
		missed=$((missed + 1))
	elif ! grep WORSE "$tree/log" | sed 's/^/   /'; then
		cat "$tree/log" >&2
		echo "the gate did not fail, it did not run" >&2
		exit 2
	fi
done
if [ "$missed" -gt 0 ]; then
	echo "$missed planted regressions were not noticed" >&2
	exit 1
fi
echo "every planted regression was noticed"
