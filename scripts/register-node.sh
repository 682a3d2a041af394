#!/bin/sh
# Registers a vLLM node with nothing but curl, over etcd's JSON gateway, and
# keeps it registered for as long as it answers and this script runs.
#
#   register-node.sh prefill|decode HOST:PORT [ETCD_URL]
#
# HOST:PORT is where proxies reach the engine, ETCD_URL defaults to
# http://127.0.0.1:2379, the etcd that a proxy carries. Settings by environment:
# TTL (lease in seconds, 15), PREFIX (/pd), ENGINE (where this script reaches
# the engine, http://HOST:PORT).
#
# This is the smallest thing that works: proxies probe the engine themselves
# before they use it. The agent does more (drains, reports a sick engine, keeps
# its facts); prefer it where it can run.
set -eu

if [ $# -lt 2 ] || { [ "$1" != prefill ] && [ "$1" != decode ]; }; then
	echo "usage: $0 prefill|decode HOST:PORT [ETCD_URL]" >&2
	exit 2
fi
address=$2
etcd=${3:-http://127.0.0.1:2379}
ttl=${TTL:-15}
engine=${ENGINE:-http://$address}
key=$(printf %s "${PREFIX:-/pd}/$1/$address" | base64 | tr -d '\n')
value=$(printf %s "$address" | base64 | tr -d '\n')
leaving=$(printf %s '{"state":"draining"}' | base64 | tr -d '\n')
lease=

say() { echo "register-node: $*" >&2; }

# call PATH JSON: one request to etcd; fails unless it answers with 200.
call() { curl -fsS -m 5 -H 'Content-Type: application/json' -d "$2" "$etcd/v3/$1"; }

# A key that is there belongs to somebody: it is only ever put where none is.
register() {
	lease=$(call lease/grant "{\"TTL\":$ttl}" | sed -n 's/.*"ID":"\([0-9]*\)".*/\1/p') && [ -n "$lease" ] || return 1
	if answer=$(call kv/txn "{\"compare\":[{\"key\":\"$key\",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"create_revision\":\"0\"}],
		\"success\":[{\"requestPut\":{\"key\":\"$key\",\"value\":\"$value\",\"lease\":\"$lease\"}}]}"); then
		case $answer in *'"succeeded":true'*) return 0 ;; esac
		say "$address is registered already, by somebody else or under an old lease; trying again"
	fi
	revoke
	return 1
}

revoke() {
	[ -z "$lease" ] || call lease/revoke "{\"ID\":\"$lease\"}" >/dev/null || true
	lease=
}

# A lease that ends is no farewell: proxies go on with an engine that answers.
# So the record says that it is leaving, under our lease, before that ends.
sign_off() {
	[ -z "$lease" ] || call kv/txn "{\"compare\":[{\"key\":\"$key\",\"target\":\"LEASE\",\"result\":\"EQUAL\",\"lease\":\"$lease\"}],
		\"success\":[{\"requestPut\":{\"key\":\"$key\",\"value\":\"$leaving\",\"lease\":\"$lease\"}}]}" >/dev/null || true
	revoke
}

trap 'sign_off; say "signed off"; exit 0' INT TERM
trap revoke EXIT

while :; do
	if ! curl -fs -m 5 -o /dev/null "$engine/health"; then
		say "$engine/health does not answer: not renewing"
	elif [ -z "$lease" ]; then
		if register; then say "$1 $address registered, lease $lease"; fi
	elif ! answer=$(call lease/keepalive "{\"ID\":\"$lease\"}"); then
		say "etcd does not answer; the lease may still live, keeping it"
	elif ! printf %s "$answer" | grep -q '"TTL":"[1-9]'; then
		say "the lease is gone, registering anew"
		lease=
		continue
	fi
	sleep $(((ttl + 2) / 3)) >/dev/null 2>&1 & # in the background, so that a signal is heard at once
	wait $! || true
done
