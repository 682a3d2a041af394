// Package vllm is a client of the side endpoints of vLLM engines: /health, /v1/models, /version and /metrics.
// It also sends requests of one token as probes (Client.Trial).
//
// Engines are not trusted: every call has a deadline, every body a bound, redirects are refused, and
// each error names what the user can check or change.
//
//	c := vllm.New(apiKey)
//	facts, err := c.Facts(ctx, "http://10.0.0.7:8100")
package vllm
