#!/usr/bin/env bash
# Names the programs in a directory as users know them, and leaves links with the names of
# their packages in cmd/:
#
#   scripts/long-names.sh DIR
set -euo pipefail
cd "$1"
for name in proxy agent; do
	[ -L "$name" ] || mv -f "$name" "pdmesh-$name"
	ln -sf "pdmesh-$name" "$name"
done
