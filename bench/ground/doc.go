// Package ground compares scheduling policies: it replays recorded traffic to simulated engines
// with finite KV caches, through our proxy or another router, and reports cache hit ratios and
// times to the first token.
//
//	trace ──▶ Workload ──▶ router ──▶ 8 prefill + 8 decode engines   Replay
//	                  └──▶ policy ──▶ 8 queues with caches           Model
//
// Model has no HTTP and no clock, and is used to tune the constants of policies.
package ground
