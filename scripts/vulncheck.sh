#!/usr/bin/env bash
# Checks the dependencies of the programs for known vulnerabilities, with the database at
# VULN_DB. Fails if the database is unreachable.
set -euo pipefail
cd "$(dirname "$0")/.."

db=${VULN_DB:-https://vuln.go.dev}
version=${VULN_VERSION:?set it to the version of govulncheck, as make vulncheck does}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

if go run "golang.org/x/vuln/cmd/govulncheck@$version" -db "$db" ./... 2>&1 | tee "$log"; then
	exit 0
fi
if grep -qE 'fetching vulnerabilities|dial tcp|no such host|HTTP GET' "$log"; then
	echo "NOT CHECKED: the vulnerability database $db is unreachable; set VULN_DB to a reachable copy (https:// or file://)" >&2
fi
exit 1
