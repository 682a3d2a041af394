#!/usr/bin/env bash
# Prints the tests that the short form shortens or skips, which use package
# testkit/longform or call a function of their package that does: a line for each package,
# with a regular expression of their names. If a method uses longform, the expression matches
# every test.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck disable=SC2016 # a program of awk
for dir in $(grep -rl --include='*_test.go' '/sim/testkit/longform"' cmd internal sim test bench scripts | xargs dirname | sort -u); do
	cat "$dir"/*_test.go | awk -v dir="./$dir" '
		/^func [A-Za-z0-9_]+[(\[]/ { name = $2; sub(/[(\[].*/, "", name) }
		name != "" { body[name] = body[name] $0 "\n" }
		name == "" && /longform\.(Test|Run|Count)\(/ { whole = 1 }
		/^}/ { name = "" }
		END {
			for (f in body) if (body[f] ~ /longform\.(Test|Run|Count)\(/) long[f] = 1
			do { # until no more functions call one of them
				more = 0
				for (l in long) for (f in body) if (!(f in long) && body[f] ~ "[^A-Za-z0-9_.]" l "[(,]") { long[f] = more = 1 }
			} while (more)
			for (f in long) if (f ~ /^Test/) tests = tests "|" f
			if (whole || tests != "") print dir, whole ? "." : "^(" substr(tests, 2) ")$"
		}'
done
