#!/bin/sh
# Puts Debian's etcd 3.4 into a directory, for tests: dist/etcd34 unless another
# is given. The package is unpacked, not installed: its installation would start
# a service that holds port 2379 and comes back with every boot.
set -eu

dir=${1:-dist/etcd34}
if "$dir/usr/bin/etcd" --version 2>/dev/null | grep -q '^etcd Version: 3\.4\.'; then
	exit 0
fi
mkdir -p "$dir"
cd "$dir"
rm -f etcd-server_*.deb
apt-get download -q etcd-server
dpkg-deb -x etcd-server_*.deb .
rm -f etcd-server_*.deb
usr/bin/etcd --version | head -1
usr/bin/etcd --version | grep -q '^etcd Version: 3\.4\.' || {
	echo "$0: this release's etcd-server is not 3.4" >&2
	exit 1
}
