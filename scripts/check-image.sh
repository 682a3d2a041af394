#!/usr/bin/env bash
# Runs the command of an unpacked container image, the proxy, in new namespaces with a
# read-only file system, as docker-compose.yml does.
#
#   scripts/check-image.sh DIR FILE      FILE has the output of "image unpack"
set -euo pipefail

fail() { printf 'check-image: %s\n' "$*" >&2; exit 1; }

if [ "${1:-}" = --inside ]; then
	root=$2 facts=$3
	ip link set lo up
	mount --make-rprivate /
	mount --bind "$root" "$root"
	mount -o remount,bind,ro "$root"
	mount -t proc proc "$root/proc"
	mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
	user=$(sed -n 's/^user //p' "$facts")
	mount -t tmpfs -o "mode=755,uid=${user%:*},gid=${user#*:}" tmpfs "$root/var/lib/pdmesh"
	mapfile -t environment < <(sed -n 's/^env //p' "$facts")
	mapfile -t command < <(sed -n 's/^cmd //p' "$facts")
	# The image has no env, so the environment is inherited through chroot.
	within() { env -i "${environment[@]}" "$(command -v chroot)" --userspec="$user" "$root" "$@"; }
	within "/usr/local/bin/${command[0]}" "${command[@]:1}" &
	proxy=$!
	ready=
	for _ in $(seq 300); do
		kill -0 "$proxy" 2>/dev/null || fail "${command[*]} has ended"
		# Without an engine the proxy is alive, not ready.
		if output=$(within /usr/local/bin/pdmesh-proxy health --live 2>/dev/null) && within /usr/local/bin/pdctl list 2>/dev/null; then
			ready=$output
			break
		fi
		sleep 0.2
	done
	[ -n "$ready" ] || fail "${command[*]} does not answer, or its etcd"
	printf '   %s\n' "$ready"
	kill "$proxy"
	code=0
	wait "$proxy" || code=$?
	case $code in
	0 | 143) ;;
	*) fail "${command[*]} ended with $code" ;;
	esac
	exit
fi
exec unshare --net --mount --pid --mount-proc --ipc --fork --kill-child "$0" --inside "$@"
