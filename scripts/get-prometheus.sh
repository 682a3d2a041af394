#!/bin/sh
# Unpacks Debian's Prometheus and promtool for tests into a directory, by default
# dist/prometheus. The package is not installed, because its installation starts a service
# on port 9090 and enables it.
set -eu

dir=${1:-dist/prometheus}
if [ -x "$dir/usr/bin/prometheus" ] && [ -x "$dir/usr/bin/promtool" ]; then
	exit 0
fi
mkdir -p "$dir"
cd "$dir"
rm -f prometheus_*.deb
apt-get download -q prometheus
dpkg-deb -x prometheus_*.deb .
rm -f prometheus_*.deb
usr/bin/prometheus --version | head -1
