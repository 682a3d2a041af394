#!/usr/bin/env bash
# Applies one bug after the other to a copy of the tree, and fails if test/robustness passes ten
# seeds of DURATION with the programs of one of them. Each patch in scripts/planted-robustness is
# one bug: its first line names it. BUG=name runs only scripts/planted-robustness/name.patch.
set -euo pipefail
cd "$(dirname "$0")/.."

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
export CGO_ENABLED=0
go test -c -o "$tree/robustness.test" ./test/robustness
mkdir "$tree/bin"
go build -trimpath -o "$tree/bin/" ./cmd/fakevllm ./cmd/etcd

missed=0
for patch in scripts/planted-robustness/${BUG:-*}.patch; do
	printf '== %s: %s\n' "$(basename "$patch" .patch)" "$(head -1 "$patch")"
	rm -rf "${tree:?}/copy"
	mkdir "$tree/copy"
	git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$tree/copy" --
	patch --quiet --strip=1 --forward --fuzz=0 --directory="$tree/copy" <"$patch"
	if ! (cd "$tree/copy" && go build -trimpath -o "$tree/bin/" ./cmd/proxy ./cmd/agent ./cmd/pdctl); then
		echo "the tree does not compile with the patch" >&2
		exit 2
	fi
	if (cd test/robustness && PD_TEST_BIN=$tree/bin PD_ROBUSTNESS_FIRST=${FIRST:-1} PD_ROBUSTNESS_SEEDS=10 PD_ROBUSTNESS_DURATION=${DURATION:-20s} \
		PD_ROBUSTNESS_FAILFAST=1 "$tree/robustness.test" -test.run 'TestRobustness$' -test.timeout 0 -test.v) >"$tree/log" 2>&1; then
		echo "   NOT DETECTED in ten seeds"
		missed=$((missed + 1))
	elif ! grep -E 'violations by rule' "$tree/log" | sed 's/^.*seed /   detected by seed /'; then
		cat "$tree/log" >&2
		echo "the suite did not run" >&2
		exit 2
	else
		grep -m1 -E 'seed [0-9]+ at +[0-9.]+: ' "$tree/log" | sed -E 's/^ *[a-z_]+\.go:[0-9]+: /   /' | cut -c1-300
	fi
done
if [ "$missed" -gt 0 ]; then
	echo "$missed planted bugs were not detected" >&2
	exit 1
fi
echo "every planted bug was detected"
