// Package embedetcd runs a single-member etcd for a proxy that is started without
// --etcd-endpoints, so that one program is enough to start with. Agents, pdctl and
// other proxies use it over TCP like any other etcd.
//
//	client port ──▶ first bytes ── HTTP/2 ──▶ gRPC: etcd's own API
//	                           └── HTTP/1 ──▶ guard ──▶ JSON gateway (/v3/…)
//
// The JSON gateway lets a node without an etcd client register with curl. A web page
// in the operator's browser can send requests to loopback addresses as well, so each
// request is checked before it reaches the gateway.
//
// Only the proxy and the benchmark link this package: the etcd server is ten megabytes.
package embedetcd
