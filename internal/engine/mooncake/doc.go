// Package mooncake reads mooncake.json, which configures the address of Mooncake's metadata server
// on a vLLM node. Several formats of it are in use:
//
//	v0.1   local_url, remote_url, metadata_server (etcd's host:port)
//	v0.2   prefill_url, decode_url, metadata_server, metadata_backend
//	v0.3   local_hostname, metadata_server (with a scheme), master_server_address
//	store  metadata_server, master_server_address, segment and buffer sizes
//
// If the metadata server is etcd, instances register in the same etcd, so a node that has the file
// needs no second setting. The package only reads the file; it opens no connection and touches none
// of Mooncake's keys.
package mooncake
