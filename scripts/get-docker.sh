#!/bin/sh
# Unpacks Debian's Docker engine and compose plugin for tests into a directory, by default
# dist/docker, unless the machine has both. The packages are not installed, because their
# installation starts a service. scripts/with-docker.sh runs a command with them.
set -eu

dir=${1:-dist/docker}
plugin=usr/libexec/docker/cli-plugins/docker-compose
if docker compose version >/dev/null 2>&1 && docker info >/dev/null 2>&1; then
	exit 0
fi
if [ -x "$dir/usr/sbin/dockerd" ] && [ -x "$dir/$plugin" ]; then
	exit 0
fi
mkdir -p "$dir/archives/partial" "$dir/lists/partial"
cd "$dir"

# fetch OPTION... PACKAGE: downloads a package and those that it needs and the machine lacks.
fetch() {
	apt-get -q -y --no-install-recommends --download-only -o Debug::NoLocking=1 -o APT::Sandbox::User=root -o Dir::Cache::archives="$PWD/archives" "$@" >apt.log 2>&1 || {
		cat apt.log >&2
		exit 1
	}
}

fetch install docker.io
if apt-cache policy docker-compose | grep -q 'Candidate: 2\.'; then
	fetch install docker-compose
else # Debian 12 has Compose 1, so take it from Debian 13
	# shellcheck disable=SC2016 # for apt-get
	site=$(apt-get indextargets --format '$(SITE)' 'Origin: Debian' 'Label: Debian' 'Created-By: Packages' | head -1)
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site trixie main" >sources.list
	set -- -o Dir::Etc::SourceList="$PWD/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::lists="$PWD/lists" \
		-o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
	fetch "$@" update
	(cd archives && apt-get -q -o APT::Sandbox::User=root "$@" download docker-compose)
fi
for package in archives/*.deb; do
	dpkg-deb -x "$package" .
done
# An installation would make these links.
for name in iptables ip6tables; do
	if [ -e "usr/sbin/$name-nft" ] && [ ! -e "usr/sbin/$name" ]; then
		ln -s "$name-nft" "usr/sbin/$name"
	fi
done
mkdir -p config/cli-plugins
ln -sf "../../$plugin" config/cli-plugins/
rm -rf archives lists sources.list apt.log
usr/sbin/dockerd --version
"$plugin" version
