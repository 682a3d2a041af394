#!/usr/bin/env bash
# Checks the board in deploy/grafana against the types that Grafana publishes for
# dashboards, with the TypeScript compiler. Requires npm and its registry.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
	echo 'import type { Dashboard } from "@grafana/schema";'
	echo -n 'export const board: Dashboard = '
	cat deploy/grafana/pdmesh.json
} >"$work/board.ts"
cd "$work"
npm install --silent --no-audit --no-fund --ignore-scripts --legacy-peer-deps @grafana/schema@13.2.3 typescript@5.9.3
npx tsc --noEmit --strict --skipLibCheck --module esnext --moduleResolution bundler --target es2022 board.ts
echo "the board matches the types of @grafana/schema 13.2.3"
