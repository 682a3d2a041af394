// Package vllm asks one engine's side endpoints: /health, /v1/models, /version
// and /metrics. It never sends a prompt.
//
// An engine is code of another party on a network: every call has a deadline,
// every body a bound, redirects are refused, and each error says in words a
// person can act on what is wrong with the engine.
//
//	c := vllm.New(apiKey)
//	facts, err := c.Facts(ctx, "http://10.0.0.7:8100")
package vllm
