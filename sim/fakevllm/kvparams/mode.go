// Package kvparams is kv_transfer_params: what the connectors of vLLM read in a request, what
// of it they cannot use, and what a prefill answers.
package kvparams

// Mode is how KV caches travel between engines.
type Mode string

// The modes.
const (
	// Plain engines share a KV pool and need nothing in the request.
	Plain Mode = "plain"
	// NIXL engines hand over by kv_transfer_params, pull mode.
	NIXL Mode = "nixl"
	// NIXLPush engines hand over by kv_transfer_params, push mode: prefill finds the
	// request of decode by its id.
	NIXLPush Mode = "nixl_push"
	// Ascend engines have vllm-ascend's MooncakeConnectorV1.
	Ascend Mode = "ascend"
	// P2P engines have an OffloadingConnector with a tier of type p2p: decode fetches
	// by kv_request_id from the side channel of prefill.
	P2P Mode = "p2p"
	// Mooncake engines transfer by vLLM's own MooncakeConnector: both legs carry a
	// transfer_id, and decode finds prefill through its bootstrap server. The role
	// is kv_role, and a leg for the other one kills the engine.
	Mooncake Mode = "mooncake"
	// MoRIIORead and MoRIIOWrite engines transfer by vLLM's MoRIIOConnector in one of
	// its modes, and register themselves by ZeroMQ.
	MoRIIORead  Mode = "moriio_read"
	MoRIIOWrite Mode = "moriio_write"
	// LMCache engines hand over by LMCache's PD backend: prefill writes into the
	// buffer of a decode that its leg names, and notifies by ZeroMQ.
	LMCache Mode = "lmcache"
)

// HandsOver tells the modes whose prefill answers with kv_transfer_params.
func (m Mode) HandsOver() bool { return m == NIXL || m == NIXLPush || m == Ascend }
