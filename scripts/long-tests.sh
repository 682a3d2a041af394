#!/usr/bin/env bash
# Prints the tests that the short form shortens or skips, which use package
# testkit/longform: a line for each package, with a regular expression of their names. If
# longform is used outside of a test function, the expression matches every test.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck disable=SC2016 # a program of awk
grep -rl --include='*_test.go' '/sim/testkit/longform"' cmd internal sim test bench scripts | sort | xargs awk '
	FNR == 1 { dir = "./" FILENAME; sub(/\/[^\/]*$/, "", dir); name = "" }
	/^func Test[A-Za-z0-9_]*\(/ { name = $2; sub(/\(.*/, "", name) }
	/^}/ { name = "" }
	/longform\.(Test|Run|Count)\(/ {
		if (name == "") whole[dir] = 1
		else if (!seen[dir, name]++) names[dir] = names[dir] "|" name
		dirs[dir] = 1
	}
	END { for (d in dirs) print d, whole[d] ? "." : "^(" substr(names[d], 2) ")$" }' | sort
