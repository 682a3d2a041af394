#!/usr/bin/env bash
# Counts phrases in tracked sources, pages and the Makefile that are not plain engineering
# English. CONTRIBUTING.md ("English") has what to write instead.
#
#   scripts/prose.sh [-v] [PATH...]       prints the total; -v also every hit, and the count of each phrase
#   LIMIT=n scripts/prose.sh              fails if the total is above n
#
# This file lists the phrases; extend it when a new habit appears.
set -uo pipefail
verbose=
if [ "${1:-}" = -v ]; then
	verbose=1
	shift
fi
cd "$(git rev-parse --show-toplevel)" || exit 2
mapfile -t files < <(git ls-files -- "${@:-.}" | grep -E '\.(go|md|js|html|css|sh|py|ya?ml|service)$|(^|/)Makefile$' | grep -vE '/testdata/|\.pb\.go$|^CHANGELOG|^scripts/prose\.sh$')
[ ${#files[@]} -gt 0 ] || { echo "no files: ${*:-.}" >&2; exit 2; }
phrases=(
	'\b(tells|tell|told)\b'
	'\bgives?\b(?! (up|way|rise))'
	'\bstands?\b(?!-?(by|alone|ard))'
	'\b(nobody|somebody)\b'
	'\banew\b'
	'\bso many\b'
	'\bin force\b'
	'\b(its|the|an|their) own etcd\b'
	'\bare had\b|\bis had\b|\bto be had\b'
	'\bdearer\b'
	'\blonely\b'
	'\bunhand|\bhand-?over'
	'\bbeside that\b|\bbeside (it|them|each other)\b'
	'\b(is|are|be) said\b|\bsays? so\b'
	'\bheard?\b'
	'\bgone\b'
	'\bwhoever\b|\bwho comes\b'
	'\bforetold\b|\bgravest\b|\bin doubt\b|\bsign of life\b'
	'\bof (a|an|the) (prompt|body|text|list) of so\b'
	'\bwithout a word\b|\bin words\b|\blast words\b'
	'\bit is looked\b|\bis looked for\b'
)
joined=$(IFS='|' && echo "${phrases[*]}")
if [ -n "$verbose" ]; then
	grep -nPi -- "$joined" "${files[@]}"
	for p in "${phrases[@]}"; do
		printf '%6d  %s\n' "$(grep -hoPi -- "$p" "${files[@]}" 2>/dev/null | wc -l)" "$p"
	done
fi
total=$(grep -hoPi -- "$joined" "${files[@]}" 2>/dev/null | wc -l)
echo "phrases to replace: $total${LIMIT:+ (limit $LIMIT)}"
[ -z "${LIMIT:-}" ] || [ "$total" -le "$LIMIT" ]
