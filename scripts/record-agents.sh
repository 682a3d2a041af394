#!/bin/sh
# Records the requests of three coding agents to the simulated engine, and writes
# test/agents/recordings, with texts replaced by filler and the structure unchanged.
# Requires npm with node 18 or newer, Go, unshare (util-linux), ip (iproute2), and Linux on
# x86_64; root, or unprivileged user namespaces.
#
#   scripts/record-agents.sh               all
#   scripts/record-agents.sh claude-code   one of them
#
# The agents run in a network namespace with only loopback, with a temporary HOME and
# without telemetry. Their packages take 1.2 GB in a temporary directory. Claude Code and
# OpenCode get few of their tools, which keeps their requests small.
set -eu

claude_version=2.1.331
codex_version=0.169.0
opencode_version=1.18.33
home=/tmp/pdmesh-record # the turns name files below it
question='What do the notes in notes.txt say? Count their words, too.'

cd "$(dirname "$0")/.."
root=$(pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir" "$home"' EXIT
CGO_ENABLED=0 go build -o "$dir/record" ./test/agents/record

# install PACKAGE VERSION: the program for this platform is in a separate package, so no
# installation script is run.
install() {
	npm install --prefix "$dir/$2" --no-audit --no-fund --ignore-scripts --silent "$1@$2"
}

# isolated COMMAND...: runs it in a network namespace with only loopback, in a new
# directory with one file, with an empty environment.
isolated() {
	rm -rf "$home"
	mkdir -p "$home/files" "$home/.codex"
	echo 'hello there' >"$home/files/notes.txt"
	cd "$home/files"
	env -i PATH="$PATH" HOME="$home" unshare -rn sh -c 'ip link set lo up && exec "$@"' isolated "$@" </dev/null
	cd "$root"
}

claude_code() {
	install @anthropic-ai/claude-code "$claude_version"
	program=$dir/$claude_version/node_modules/@anthropic-ai/claude-code-linux-x64/claude
	isolated env ANTHROPIC_BASE_URL='{url}' ANTHROPIC_AUTH_TOKEN=token ANTHROPIC_MODEL=m ANTHROPIC_SMALL_FAST_MODEL=m \
		CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_TELEMETRY=1 DISABLE_ERROR_REPORTING=1 DISABLE_AUTOUPDATER=1 IS_SANDBOX=1 \
		"$dir/record" -agent @anthropic-ai/claude-code -version "$claude_version" -command 'claude -p' \
		-turns "$root/test/agents/record/claude-code.turns.json" -out "$root/test/agents/recordings/claude-code.txt" -- \
		"$program" -p "$question" --tools Bash,Edit,Read,Write --allowed-tools Bash,Read,Write
}

codex() {
	install @openai/codex "$codex_version"
	program=$(echo "$dir/$codex_version"/node_modules/@openai/codex-linux-x64/vendor/*/bin/codex)
	isolated env CODEX_HOME="$home/.codex" \
		"$dir/record" -agent @openai/codex -version "$codex_version" -command 'codex exec' \
		-turns "$root/test/agents/record/codex.turns.json" -out "$root/test/agents/recordings/codex.txt" -- \
		"$program" exec --skip-git-repo-check -s danger-full-access \
		-c model=m -c model_provider=pdmesh -c 'model_providers.pdmesh={name="pdmesh",base_url="{url}/v1",wire_api="responses"}' \
		-c analytics.enabled=false "$question"
}

# A session with a title does not ask the model for one.
opencode() {
	install opencode-ai "$opencode_version"
	program=$dir/$opencode_version/node_modules/opencode-linux-x64/bin/opencode
	isolated env OPENCODE_DISABLE_AUTOUPDATE=1 OPENCODE_DISABLE_MODELS_FETCH=1 OPENCODE_DISABLE_SHARE=1 OPENCODE_DISABLE_LSP_DOWNLOAD=1 \
		OPENCODE_CONFIG_CONTENT='{"model":"pdmesh/m","small_model":"pdmesh/m","provider":{"pdmesh":{"npm":"@ai-sdk/openai","options":{"baseURL":"{url}/v1","apiKey":"key"},"models":{"m":{}}}},"tools":{"*":false,"bash":true,"read":true,"write":true}}' \
		"$dir/record" -agent opencode-ai -version "$opencode_version" -command 'opencode run' \
		-turns "$root/test/agents/record/opencode.turns.json" -out "$root/test/agents/recordings/opencode.txt" -- \
		"$program" run --title notes "$question"
}

case "${1:-all}" in
all) claude_code && codex && opencode ;;
claude-code) claude_code ;;
codex) codex ;;
opencode) opencode ;;
*) echo "usage: $0 [claude-code | codex | opencode]" >&2 && exit 2 ;;
esac
ls -l test/agents/recordings
