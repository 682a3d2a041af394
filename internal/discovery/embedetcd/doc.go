// Package embedetcd runs an etcd of one member inside a proxy that was given no
// endpoints, so that one program is enough to start with. Agents, pdctl and
// further proxies use it over TCP like any other etcd.
//
//	client port ──▶ first bytes ── HTTP/2 ──▶ gRPC: etcd's own API
//	                           └── HTTP/1 ──▶ guard ──▶ JSON gateway (/v3/…)
//
// The JSON gateway is what a node without an etcd client registers through,
// with nothing but curl. A web page that the operator happens to have open can
// send requests to loopback addresses too, so each request is checked before it
// reaches the gateway.
//
// Only the proxy and the benchmark link this package: the etcd server is ten megabytes.
package embedetcd
