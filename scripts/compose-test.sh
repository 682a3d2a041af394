#!/usr/bin/env bash
# Runs TestContainers, which starts docker-compose.yml in containers and breaks it under
# load. Images come from no registry: that of pdmesh is made as for a release, and that of
# etcd has bin/etcd and etcdctl. make compose-test builds bin/ first.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$PWD/dist/compose
mkdir -p "$out/etcd/usr/local/bin"
scripts/get-docker.sh
go -C tools run ./image build --bin "$PWD/bin" --arch "$(go env GOARCH)" --out "$out/pdmesh.tar" --tag pdmesh:compose-test
CGO_ENABLED=0 go -C tools build -trimpath -ldflags '-s -w' -o "$out/etcd/usr/local/bin/etcdctl" go.etcd.io/etcd/etcdctl/v3
cp bin/etcd "$out/etcd/usr/local/bin/"
tar -C "$out/etcd" --owner=0 --group=0 -cf "$out/etcd.tar" usr
# An engine of the test's own has no network, so compile now.
CGO_ENABLED=0 go test -vet=off -c -o "$out/deploy.test" ./test/deploy
scripts=$PWD/scripts
cd test/deploy
PD_TEST_COMPOSE=$out "$scripts/with-docker.sh" "$out/deploy.test" -test.run 'TestContainers$' -test.v -test.timeout 15m
