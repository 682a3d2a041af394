// Package ground is the proving ground of scheduling policies: it replays recorded
// traffic before a fleet of simulated engines with finite KV caches, through any
// router, and reports what the caches gave and how long users waited.
//
//	trace ──▶ Workload ──▶ router ──▶ 8 prefill + 8 decode engines   Replay
//	                  └──▶ policy ──▶ 8 queues with caches           Model
//
// Model has no HTTP and no clock; it is for looking for a policy's constants.
package ground
