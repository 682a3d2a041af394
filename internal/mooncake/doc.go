// Package mooncake reads mooncake.json, the file that tells a vLLM node where
// Mooncake's metadata server is. Several shapes of it are in use:
//
//	v0.1   local_url, remote_url, metadata_server (etcd's host:port)
//	v0.2   prefill_url, decode_url, metadata_server, metadata_backend
//	v0.3   local_hostname, metadata_server (with a scheme), master_server_address
//	store  metadata_server, master_server_address, segment and buffer sizes
//
// Where the metadata server is etcd it is the same etcd that we register in, so
// a node that has the file needs no second setting. The package reads and
// explains; it connects to nothing and touches none of Mooncake's own keys.
package mooncake
