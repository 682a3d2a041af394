// Package engine is one engine core: its queue, its batch, its KV cache and its clock. vLLM has
// one for each data-parallel rank.
//
//	slot ──▶ turn ──▶ room in the cache ──▶ prefill ──▶ decode
//
// Prompts are computed one after the other in the order they came in, as vLLM's
// scheduler does with chunks of them; what is found in the cache is decided when
// a prompt's turn comes.
//
// Nothing in it knows HTTP or a connector: a Lifetime says when a request ends early, and
// Loaded what came from another engine.
package engine
