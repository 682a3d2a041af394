#!/bin/sh
# Records two coding agents, as their packages have them, while they work with the
# simulated engine, and writes test/agents/recordings: texts replaced by filler, structure
# as it was sent. Needs npm with node 18 or newer, Go, unshare (util-linux), ip (iproute2),
# and Linux on x86_64; root, or user namespaces that anybody may make.
#
#   scripts/record-agents.sh               both
#   scripts/record-agents.sh claude-code   one of them
#
# The agents run in a network namespace that has nothing but loopback, with a HOME of
# their own and without telemetry. The packages take 800 MB in a temporary directory.
# Claude Code is given four tools of its twelve, which keeps its requests small.
set -eu

claude_version=2.1.331
codex_version=0.169.0
home=/tmp/pdmesh-record # the turns name files below it
question='What do the notes in notes.txt say? Count their words, too.'

cd "$(dirname "$0")/.."
root=$(pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir" "$home"' EXIT
CGO_ENABLED=0 go build -o "$dir/record" ./test/agents/record

# install PACKAGE VERSION: its program for this machine comes as a package of its own, so
# that no script of an installation is run.
install() {
	npm install --prefix "$dir/$2" --no-audit --no-fund --ignore-scripts --silent "$1@$2"
}

# alone COMMAND...: in a network namespace with loopback only, in a new directory with one
# file, without the environment.
alone() {
	rm -rf "$home"
	mkdir -p "$home/files" "$home/.codex"
	echo 'hello there' >"$home/files/notes.txt"
	cd "$home/files"
	env -i PATH="$PATH" HOME="$home" unshare -rn sh -c 'ip link set lo up && exec "$@"' alone "$@" </dev/null
	cd "$root"
}

claude_code() {
	install @anthropic-ai/claude-code "$claude_version"
	program=$dir/$claude_version/node_modules/@anthropic-ai/claude-code-linux-x64/claude
	alone env ANTHROPIC_BASE_URL='{url}' ANTHROPIC_AUTH_TOKEN=token ANTHROPIC_MODEL=m ANTHROPIC_SMALL_FAST_MODEL=m \
		CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_TELEMETRY=1 DISABLE_ERROR_REPORTING=1 DISABLE_AUTOUPDATER=1 IS_SANDBOX=1 \
		"$dir/record" -agent @anthropic-ai/claude-code -version "$claude_version" -command 'claude -p' \
		-turns "$root/test/agents/record/claude-code.turns.json" -out "$root/test/agents/recordings/claude-code.txt" -- \
		"$program" -p "$question" --tools Bash,Edit,Read,Write --allowed-tools Bash,Read,Write
}

codex() {
	install @openai/codex "$codex_version"
	program=$(echo "$dir/$codex_version"/node_modules/@openai/codex-linux-x64/vendor/*/bin/codex)
	alone env CODEX_HOME="$home/.codex" \
		"$dir/record" -agent @openai/codex -version "$codex_version" -command 'codex exec' \
		-turns "$root/test/agents/record/codex.turns.json" -out "$root/test/agents/recordings/codex.txt" -- \
		"$program" exec --skip-git-repo-check -s danger-full-access \
		-c model=m -c model_provider=pdmesh -c 'model_providers.pdmesh={name="pdmesh",base_url="{url}/v1",wire_api="responses"}' \
		-c analytics.enabled=false "$question"
}

case "${1:-both}" in
both) claude_code && codex ;;
claude-code) claude_code ;;
codex) codex ;;
*) echo "usage: $0 [claude-code | codex]" >&2 && exit 2 ;;
esac
ls -l test/agents/recordings
