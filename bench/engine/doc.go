// Package engine is a vLLM for benchmarks: the wire behaviour of the routes
// that matter there, at a cost so low that a proxy, not the engine, is what
// limits a run on two cores. It is no test of correctness towards vLLM; the
// strict simulator (fakevllm) is that.
//
//	conn ── wire.Reader ── parse ── answer.Stream ──▶ ITL 0: one write per event
//	                                     └─ pacer ──▶ ITL > 0: one queue for all
//
// It checks what it is given: a prompt whose bytes changed on the way shows in
// the answer (package answer), and a decode leg that brings the KV cache of
// another prompt is refused with 500 and counted.
package engine
