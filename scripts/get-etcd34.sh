#!/bin/sh
# Unpacks the etcd 3.4 of Debian for tests into a directory, by default dist/etcd34. The
# package is not installed, because its installation starts a service on port 2379 and
# enables it.
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
	echo "$0: the package etcd-server of this Debian release is not version 3.4" >&2
	exit 1
}
