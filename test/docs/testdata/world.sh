# What stands around a block of a page. This is read by bash, as process 1 of a process
# namespace and in a network namespace that has 10.0.0.1 to 10.0.0.9: all of it ends
# with this shell. REAL has the built programs.
# shellcheck shell=bash
set -euo pipefail
work=$PWD
mkdir -p shims logs state
ln -s shims bin
mkdir scripts
export PATH="$work/shims:$REAL:$PATH" HOME="$work" XDG_STATE_HOME="$work/state" XDG_RUNTIME_DIR="$work/state"
export VLLM_CONFIGURE_LOGGING=0

# A program that serves goes to the background, so that the next line of a page follows
# it as it would in another terminal.
cat >shims/serve <<'SHIM'
#!/usr/bin/env bash
name=$(basename "$0")
log=$(mktemp "$WORK/logs/$name.XXXX")
real=$REAL/$name
case "$name $*" in
*--help* | *--print-config* | "pdmesh-agent health"* | "pdmesh-proxy health"*) exec "$real" "$@" ;;
register-node.sh*) real=$SCRIPTS/$name ;;
"pdctl watch"* | "pdctl events"* | "pdmesh-agent "* | "pdmesh-proxy "* | "etcd "*) ;;
*) exec "$real" "$@" ;;
esac
"$real" "$@" >"$log" 2>&1 &
echo $! >"$log.pid"
# A port accepts connections before an etcd behind it answers: the log says when it does.
case $name in pdmesh-proxy) ready='serving on' ;; etcd) ready='serving client traffic' ;; *) exit 0 ;; esac
until grep -q "$ready" "$log"; do
	kill -0 "$(cat "$log.pid")" 2>/dev/null || { cat "$log" >&2; exit 1; }
	sleep 0.05
done
SHIM
chmod +x shims/serve
for p in pdmesh-proxy pdmesh-agent pdctl etcd; do ln -s serve shims/$p; done
ln -s ../shims/serve scripts/register-node.sh
for p in fakevllm bench replay; do ln -s "$REAL/$p" shims/$p; done
export WORK="$work" REAL

# vllm is the simulated engine: it takes the address, and the port of the connector's kind.
cat >shims/vllm <<'SHIM'
#!/usr/bin/env bash
host=127.0.0.1 port=8000 role=both mode=plain model=$2 args=()
while [ $# -gt 0 ]; do
	case $1 in
	--host) host=$2 ;;
	--port) port=$2 ;;
	--kv-events-config) args+=(--num-gpu-blocks-override 1000 --kv-events-config "$2") ;;
	--kv-transfer-config)
		case $2 in *kv_producer*) role=prefill ;; *kv_consumer*) role=decode ;; esac
		case $2 in
		*NixlPush*) mode=nixl_push ;;
		*Nixl*) mode=nixl ;;
		*MooncakeConnectorV1*) mode=ascend ;;
		*Mooncake*) mode=mooncake ;;
		*Offloading*) mode=p2p ;;
		esac
		;;
	esac
	shift
done
[ -z "${VLLM_MOONCAKE_BOOTSTRAP_PORT:-}" ] || args+=(--bootstrap-port "$VLLM_MOONCAKE_BOOTSTRAP_PORT")
exec "$REAL/fakevllm" --quiet --host "$host" --port "$port" --role "$role" --mode "$mode" --model "$model" "${args[@]}"
SHIM
# ssh writes down its arguments.
cat >shims/ssh <<'SHIM'
#!/usr/bin/env bash
echo "$@" >>"$WORK/ssh.log"
SHIM
chmod +x shims/vllm shims/ssh

engine() { # role port [more]
	local role=$1 port=$2 host=${HOST:-127.0.0.1}
	shift 2
	"$REAL/fakevllm" --quiet --host "${HOST:-0.0.0.0}" --port "$port" --role "$role" --model m "$@" >"logs/engine-$port" 2>&1 &
	listens "$port" "$host"
}
listens() {
	until (exec 3<>"/dev/tcp/${2:-127.0.0.1}/$1") 2>/dev/null; do
		kill -0 $! || exit 1
		sleep 0.05
	done
}
# instances waits until so many are used by the proxy, or registered where there is none.
instances() {
	until [ "$("$REAL/pdctl" list 2>/dev/null | grep -Ec '^ *(prefill|decode|both) .*ready')" -ge "$1" ]; do
		alive
		sleep 0.1
	done
}
# alive fails if something that a page started has ended.
alive() {
	local f
	for f in logs/*.pid; do
		[ -e "$f" ] || continue
		if ! kill -0 "$(cat "$f")" 2>/dev/null; then
			echo "${f%.pid} has ended:" >&2
			cat "${f%.pid}" >&2
			exit 1
		fi
	done
}
etcd_runs() {
	etcd --listen-client-urls http://0.0.0.0:2379 --advertise-client-urls http://10.0.0.1:2379 --listen-peer-urls http://127.0.0.1:0 \
		--initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster default=http://127.0.0.1:2380 --data-dir etcd
}
proxy_runs() { ADMIN_API_KEY=... pdmesh-proxy --etcd-endpoints 10.0.0.1:2379 --instance-allow 10.0.0.0/8,127.0.0.0/8 --kv-events=on; }

case $WORLD in
engines) engine prefill 8100 && engine prefill 8101 && engine decode 8200 && engine decode 8201 ;;
etcd) etcd_runs ;;
"etcd and engines") etcd_runs && engine prefill 8100 && engine decode 8200 ;;
"etcd and mooncake") etcd_runs && engine prefill 8100 --mode mooncake && engine decode 8200 --mode mooncake ;;
certificates)
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=ca" -keyout ca-key.pem -out ca.pem 2>logs/openssl
	for name in proxy etcd op; do
		openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$name" -addext "subjectAltName=IP:127.0.0.1" \
			-keyout $name-key.pem -out $name.csr 2>>logs/openssl
		openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 2 -copy_extensions copy -out $name.pem 2>>logs/openssl
	done
	;;
"fleet without agents") etcd_runs && engine prefill 8100 && engine decode 8200 && proxy_runs ;;
fleet)
	etcd_runs && HOST=10.0.0.6 engine both 8100 && engine decode 8200 && proxy_runs
	export ADMIN_API_KEY=...
	pdmesh-agent --role decode --address 10.0.0.8:8200 --etcd-endpoints 10.0.0.1:2379
	pdmesh-agent --role both --address 10.0.0.6:8100 --etcd-endpoints 10.0.0.1:2379
	pdmesh-agent --role prefill --etcd-endpoints 10.0.0.1:2379 -- vllm serve m --host 10.0.0.7 --port 8100 \
		--kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv-events"}'
	instances 4
	;;
*) echo "no world $WORLD" >&2 && exit 2 ;;
esac

# The block as it stands, in a shell of its own kind, then what must be true behind it.
# shellcheck disable=SC1091 # written by the test
source ./block.sh
# shellcheck disable=SC1091 # likewise
source ./then.sh
alive
