// Package agentctl is the local control API of an agent: HTTP over a unix socket that
// only the agent's user can open.
//
//	GET  /status   Report as JSON
//	POST /drain    drain and exit, like SIGTERM; answers at once
//	GET  /metrics  Prometheus text
//
// The agent calls Serve, its subcommands use Client. The package uses neither etcd
// nor the engine: Source provides all data.
package agentctl
