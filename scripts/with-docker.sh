#!/usr/bin/env bash
# Runs a command with a Docker engine and the compose plugin: with those of the machine, or,
# if no engine answers, with an engine that runs only for the command. That one needs root.
# It is in new namespaces, so that it changes nothing of the machine's network, and all its
# containers end with it.
#
#   scripts/with-docker.sh docker compose version
#
# PATH and dist/docker (scripts/get-docker.sh) are searched for the programs.
set -euo pipefail

fail() { printf 'with-docker: %s\n' "$*" >&2; exit 1; }

if [ "${1:-}" != --inside ]; then
	if docker compose version >/dev/null 2>&1 && docker info >/dev/null 2>&1; then
		exec "$@"
	fi
	exec unshare --net --mount --pid --mount-proc --fork --kill-child "$0" --inside "$@"
fi
shift

dir=$(cd "$(dirname "$0")/.." && pwd)/dist/docker
libraries=$(printf '%s:' "$dir"/usr/lib/*-linux-gnu "$dir"/lib/*-linux-gnu)
export PATH=$dir/usr/sbin:$dir/usr/bin:$dir/sbin:$PATH
command -v dockerd >/dev/null || fail "no dockerd: scripts/get-docker.sh unpacks Debian's"

ip link set lo up
mount -t tmpfs tmpfs /run # sockets, locks and mounts of the engine end with the namespace
work=$(mktemp -d)
trap 'exit 130' INT TERM
trap 'rm -rf "$work"' EXIT
echo '{}' >"$work/daemon.json"
# With ndots, a name without a dot that no container has does not exist. Without it, the
# engine would ask a name server, which it cannot reach.
env LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:-}" XTABLES_LIBDIR="$(printf '%s:' "$dir"/usr/lib/*-linux-gnu/xtables /usr/lib/*-linux-gnu/xtables)" \
	dockerd --config-file "$work/daemon.json" --data-root "$work/data" --exec-root /run/docker --pidfile /run/docker.pid \
	--host "unix://$work/docker.sock" --bridge none --dns-opt ndots:1 >"$work/log" 2>&1 &
engine=$!
export DOCKER_HOST=unix://$work/docker.sock DOCKER_CONFIG=$dir/config
unset DOCKER_CONTEXT
for _ in $(seq 300); do
	kill -0 "$engine" 2>/dev/null || fail "dockerd ended: $(tail -20 "$work/log")"
	if docker info >/dev/null 2>&1; then
		break
	fi
	sleep 0.2
done
docker info >/dev/null || fail "dockerd does not answer: $(tail -20 "$work/log")"
code=0
"$@" || code=$?
[ "$code" = 0 ] || tail -20 "$work/log" >&2
kill "$engine"
wait "$engine" || true
exit "$code"
