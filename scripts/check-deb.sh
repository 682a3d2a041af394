#!/usr/bin/env bash
# Installs and tests a Debian package on a clean Debian with systemd:
#
#   scripts/check-deb.sh dist/release/pdmesh_..._amd64.deb
#
# debootstrap creates the Debian from the package source of this machine's apt; it is kept
# in dist/clean-root.tar. It boots in new namespaces, with only loopback as its network,
# and ends with this script. Requires root.
set -euo pipefail

fail() { printf 'check-deb: %s\n' "$*" >&2; exit 1; }
step() { printf '   %(%T)T %s\n' -1 "$*"; }

# boot ROOT: becomes process 1 of the Debian in ROOT.
boot() {
	mount --make-rprivate /
	mount --bind "$1" "$1"
	cd "$1"
	mount -t proc proc proc
	mount -t sysfs -o ro sysfs sys
	mount -t tmpfs tmpfs run
	mount -t tmpfs tmpfs tmp
	mount -t tmpfs -o mode=755 tmpfs dev
	mkdir dev/shm dev/pts
	mknod -m 666 dev/null c 1 3
	mknod -m 666 dev/zero c 1 5
	mknod -m 666 dev/full c 1 7
	mknod -m 666 dev/random c 1 8
	mknod -m 666 dev/urandom c 1 9
	mknod -m 666 dev/tty c 5 0
	mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
	ln -s pts/ptmx dev/ptmx
	mount -t tmpfs tmpfs sys/fs/cgroup
	mount -t cgroup2 none sys/fs/cgroup
	mkdir -p .host
	pivot_root . .host
	exec env -i container=lxc PATH=/usr/sbin:/usr/bin:/sbin:/bin \
		sh -c 'umount -l /.host && rmdir /.host && exec /lib/systemd/systemd --log-target=console'
}
if [ "${1:-}" = --boot ]; then
	boot "$2"
fi

[ $# = 1 ] || fail "usage: $0 FILE.deb"
deb=$(realpath "$1")
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || fail "requires root, to install a package and to create namespaces"
for program in debootstrap unshare nsenter curl; do
	command -v "$program" >/dev/null || fail "$program is not installed: install Debian's packages debootstrap, util-linux and curl"
done

mkdir -p dist
root=$(mktemp -d "$PWD/dist/clean-root.XXXXXX")
chmod 755 "$root" # it becomes /
init='' outer=''
finish() {
	if [ -n "$outer" ]; then
		kill -9 "$outer" 2>/dev/null || true
		wait "$outer" 2>/dev/null || true
	fi
	rm -rf --one-file-system "$root"
}
trap finish EXIT

if [ -f dist/clean-root.tar ]; then
	step "unpack a clean Debian from dist/clean-root.tar"
	tar -C "$root" -xpf dist/clean-root.tar
else
	# shellcheck source=/dev/null
	release=$(. /etc/os-release && printf '%s' "$VERSION_CODENAME")
	# shellcheck disable=SC2016 # apt's variables
	uri=$(apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(IDENTIFIER) $(REPO_URI)' |
		awk -v release="$release" '$1 == release && $2 == "main" && $3 == "Packages" {print $4; exit}')
	[ -n "$uri" ] || fail "apt has no package list of $release: run apt-get update"
	step "create a clean Debian ($release) with debootstrap"
	debootstrap --variant=minbase --include=systemd,systemd-sysv "$release" "$root" "$uri" >dist/debootstrap.log 2>&1 ||
		fail "debootstrap: $(tail -5 dist/debootstrap.log)"
	rm -rf "$root"/var/cache/apt/archives/*.deb
	tar -C "$root" -cf dist/clean-root.tar.new .
	mv dist/clean-root.tar.new dist/clean-root.tar
fi
cp "$deb" "$root/root/pdmesh.deb"

step "install, remove and purge without systemd"
mv "$root/bin/systemctl" "$root/bin/systemctl.away"
chroot "$root" dpkg --install /root/pdmesh.deb >/dev/null
chroot "$root" getent passwd pdmesh >/dev/null || fail "there is no user pdmesh"
chroot "$root" dpkg --remove pdmesh >/dev/null
[ ! -e "$root/usr/bin/pdctl" ] || fail "the removal left pdctl"
[ -e "$root/etc/pdmesh/proxy.env" ] || fail "the removal deleted the settings"
chroot "$root" dpkg --purge pdmesh >/dev/null
[ ! -e "$root/etc/pdmesh" ] || fail "the purge left /etc/pdmesh"
mv "$root/bin/systemctl.away" "$root/bin/systemctl"

step "boot systemd"
unshare --net --mount --pid --uts --ipc --cgroup --fork --kill-child "$0" --boot "$root" >"$root.log" 2>&1 &
outer=$!
on() { nsenter -t "$init" --mount --net --pid --uts --ipc --cgroup --root --wd -- "$@"; }
state=
for _ in $(seq 300); do
	kill -0 "$outer" 2>/dev/null || fail "process 1 ended: $(cat "$root.log")"
	init=$(cat "/proc/$outer/task/$outer/children")
	init=${init%% *}
	if [ "$(readlink "/proc/${init:-none}/exe")" = "$(realpath -m /usr/lib/systemd/systemd)" ]; then
		state=$(on systemctl is-system-running 2>/dev/null) || true
	fi
	case $state in running | degraded) break ;; esac
	sleep 0.2
done
rm -f "$root.log"
case $state in running | degraded) ;; *) fail "systemd did not start: ${state:-no answer}" ;; esac
nsenter -t "$init" --net ip link set lo up

step "dpkg --install"
on dpkg --install /root/pdmesh.deb >/dev/null
on systemctl is-enabled --quiet pdmesh-proxy && fail "the installation enabled the proxy"
[ "$(on systemctl show -P ActiveState pdmesh-proxy)" = inactive ] || fail "the installation started the proxy"

step "systemd-analyze verify"
for unit in pdmesh-proxy.service pdmesh-agent@prefill.service; do
	output=$(on systemd-analyze verify --man=no "$unit" 2>&1) || fail "$unit: $output"
	[ -z "$output" ] || fail "$unit: $output"
	output=$(on systemd-analyze security --no-pager --threshold=20 "$unit" 2>&1) || fail "$unit is too exposed: $output"
done

step "run the demo"
output=$(on pdmesh-demo --once 2>&1) || fail "pdmesh-demo --once: $output"

step "start proxy and agents from the packaged units"
engine() { # engine ROLE PORT
	on systemd-run --quiet --unit "engine-$1" --property DynamicUser=yes \
		/usr/lib/pdmesh/fakevllm --role "$1" --port "$2" --model demo/simulated
}
# A prefill agent stops only after the KV lease of its last prefill, 30 s by default.
echo 'PD_KV_LEASE=1s' >>"$root/etc/pdmesh/agent-prefill.env"
engine prefill 8100
engine decode 8200
services=(pdmesh-proxy.service pdmesh-agent@prefill.service pdmesh-agent@decode.service)
for service in "${services[@]}"; do # returns when the service has notified systemd
	on systemctl start "$service" || fail "$service: $(on journalctl --no-pager -u "$service")"
	pid=$(on systemctl show -P MainPID "$service")
	user=$(on stat -c %U "/proc/$pid")
	[ "$user" = pdmesh ] || fail "$service runs as $user"
done
for role in prefill decode; do
	on pdmesh-agent health --socket "/run/pdmesh-agent/$role/agent.sock"
done
on pdmesh-proxy health
on pdctl list

step "send a request"
body='{"model":"demo/simulated","max_tokens":8,"messages":[{"role":"user","content":"hello"}]}'
answer=$(nsenter -t "$init" --net curl -sS --fail-with-body --max-time 60 -H 'Content-Type: application/json' \
	-d "$body" http://127.0.0.1:8000/v1/chat/completions) || fail "no answer: $answer"
grep -q '"finish_reason"' <<<"$answer" || fail "incomplete answer: $answer"

step "upgrade: settings are kept, services keep running"
echo '# of the operator' >>"$root/etc/pdmesh/proxy.env"
before=$(on systemctl show -P MainPID pdmesh-proxy)
output=$(on dpkg --install /root/pdmesh.deb)
grep -q 'until you restart them:.*pdmesh-proxy' <<<"$output" || fail "the upgrade does not list the running services: $output"
grep -q '# of the operator' "$root/etc/pdmesh/proxy.env" || fail "the upgrade lost a setting"
[ "$(on systemctl show -P MainPID pdmesh-proxy)" = "$before" ] || fail "the upgrade restarted the proxy"

step "stop the services, remove and purge the package"
on systemctl stop pdmesh-agent@decode.service
on pdctl list decode -o json | grep -q '127.0.0.1:8200' && fail "the agent did not deregister its instance"
on systemctl enable --quiet pdmesh-proxy.service pdmesh-agent@prefill.service
on dpkg --remove pdmesh >/dev/null # stops the others
for service in "${services[@]}"; do
	[ "$(on systemctl show -P ActiveState "$service")" = inactive ] || fail "$service still runs: $(on systemctl status --no-pager "$service")"
	on journalctl --no-pager -u "$service" | grep -E 'Failed with result|code=killed|timed out' && fail "$service did not stop cleanly"
done
left=$(find "$root/etc/systemd/system" -name 'pdmesh*')
[ -z "$left" ] || fail "the removal left $left"
on dpkg --purge pdmesh >/dev/null
for dir in /etc/pdmesh /var/lib/pdmesh /usr/lib/pdmesh; do
	[ ! -e "$root$dir" ] || fail "the purge left $dir"
done
