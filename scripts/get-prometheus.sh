#!/bin/sh
# Puts Debian's Prometheus and promtool into a directory, for tests: dist/prometheus
# unless another is given. The package is unpacked, not installed: its installation
# would start a service that holds port 9090 and comes back with every boot.
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
