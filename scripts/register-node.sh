#!/bin/sh
# Registers a vLLM engine through the JSON gateway of etcd, with curl only, and renews
# its lease while the engine answers and this script runs.
#
#   register-node.sh prefill|decode HOST:PORT [ETCD_URL]
#
# HOST:PORT is the address of the engine for proxies. ETCD_URL defaults to
# http://127.0.0.1:2379, the embedded etcd of a proxy. Environment variables:
# TTL (of the lease in seconds, default 15), PREFIX (default /pd), ENGINE (URL of the
# engine for this script, default http://HOST:PORT).
#
# Proxies probe the engine before they use it. Prefer the agent where it can run: it also
# drains the engine, reports failed probes, and keeps the facts of the engine up to date.
set -eu

if [ $# -lt 2 ] || { [ "$1" != prefill ] && [ "$1" != decode ]; }; then
	echo "usage: $0 prefill|decode HOST:PORT [ETCD_URL]" >&2
	exit 2
fi
address=$2
etcd=${3:-http://127.0.0.1:2379}
prefix=${PREFIX:-/pd}
ttl=${TTL:-15}
engine=${ENGINE:-http://$address}
key=$(printf %s "${prefix%/}/$1/$address" | base64 | tr -d '\n')
value=$(printf %s "$address" | base64 | tr -d '\n')
draining=$(printf %s '{"state":"draining"}' | base64 | tr -d '\n')
lease=

log() { echo "register-node: $*" >&2; }

# call PATH JSON: sends one request to etcd; fails unless the status is 200.
call() { curl -fsS -m 5 --noproxy "*" -H 'Content-Type: application/json' -d "$2" "$etcd/v3/$1"; }

# Creates the key; an existing key belongs to another owner and is not changed.
register() {
	lease=$(call lease/grant "{\"TTL\":$ttl}" | sed -n 's/.*"ID":"\([0-9]*\)".*/\1/p') && [ -n "$lease" ] || return 1
	if answer=$(call kv/txn "{\"compare\":[{\"key\":\"$key\",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"create_revision\":\"0\"}],
		\"success\":[{\"requestPut\":{\"key\":\"$key\",\"value\":\"$value\",\"lease\":\"$lease\"}}]}"); then
		case $answer in *'"succeeded":true'*) return 0 ;; esac
		log "$address is registered already, by another owner or under an earlier lease; retrying"
	fi
	revoke
	return 1
}

revoke() {
	[ -z "$lease" ] || call lease/revoke "{\"ID\":\"$lease\"}" >/dev/null || true
	lease=
}

# Proxies keep using an engine that answers after its lease has expired, so the record is
# set to draining before the lease is revoked.
sign_off() {
	[ -z "$lease" ] || call kv/txn "{\"compare\":[{\"key\":\"$key\",\"target\":\"LEASE\",\"result\":\"EQUAL\",\"lease\":\"$lease\"}],
		\"success\":[{\"requestPut\":{\"key\":\"$key\",\"value\":\"$draining\",\"lease\":\"$lease\"}}]}" >/dev/null || true
	revoke
}

trap 'sign_off; log "deregistered"; exit 0' INT TERM
trap revoke EXIT

while :; do
	if ! curl -fs -m 5 --noproxy "*" -o /dev/null "$engine/health"; then
		log "$engine/health does not answer: the lease is not renewed"
	elif [ -z "$lease" ]; then
		if register; then log "$1 $address registered, lease $lease"; fi
	elif ! answer=$(call lease/keepalive "{\"ID\":\"$lease\"}"); then
		log "etcd does not answer; the lease may not have expired, keeping it"
	elif ! printf %s "$answer" | grep -q '"TTL":"[1-9]'; then
		log "the lease has expired, registering again"
		lease=
		continue
	fi
	sleep $(((ttl + 2) / 3)) >/dev/null 2>&1 & # in the background, so that signals are handled at once
	wait $! || true
done
