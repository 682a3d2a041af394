#!/usr/bin/env bash
# Applies one bug after the other to a copy of the tree, and fails if the tests pass with
# one of them. Each patch in scripts/planted-bugs is one bug: its first line names it, its
# line "tests:" has the arguments of go test.
set -euo pipefail
cd "$(dirname "$0")/.."

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

missed=0
for patch in scripts/planted-bugs/*.patch; do
	name=$(head -1 "$patch")
	tests=$(sed -n 's/^tests: //p' "$patch")
	rm -rf "${tree:?}/copy"
	mkdir "$tree/copy"
	git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$tree/copy" --
	patch --quiet --strip=1 --forward --fuzz=0 --directory="$tree/copy" <"$patch"
	printf '== %s\n' "$name"
	if ! (cd "$tree/copy" && go build ./internal/... ./sim/...); then
		echo "the tree does not compile with the patch" >&2
		exit 2
	fi
	# shellcheck disable=SC2086 # several arguments of go test
	if (cd "$tree/copy" && PD_TEST_LONG=1 go test -count=1 -failfast -timeout 10m $tests) >"$tree/log" 2>&1; then
		if grep -F '[no tests to run]' "$tree/log" >&2; then
			echo "the tests do not exist: $tests" >&2
			exit 2
		fi
		echo "   NOT DETECTED by go test $tests"
		missed=$((missed + 1))
	elif ! grep -E '^ *--- FAIL' "$tree/log" | sed 's/^ */   detected by /; s/--- FAIL: //'; then
		cat "$tree/log" >&2
		echo "the tests did not run" >&2
		exit 2
	fi
done
if [ "$missed" -gt 0 ]; then
	echo "$missed planted bugs were not detected" >&2
	exit 1
fi
echo "every planted bug was detected"
