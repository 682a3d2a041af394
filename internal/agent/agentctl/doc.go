// Package agentctl is an agent's local control: HTTP over a unix socket that
// only its own user can open.
//
//	GET  /status   Report as JSON
//	POST /drain    begin what SIGTERM begins; answers at once
//	GET  /metrics  Prometheus text
//
// Serve is the agent's side, Client that of the subcommands. Nothing here knows
// etcd or the engine: what is shown comes in through Source.
package agentctl
