// Package kvevents reads what vLLM publishes about its KV cache: which blocks of
// tokens an engine has stored, removed and cleared.
//
// Decoder reads one batch as it comes over ZeroMQ, in both encodings that vLLM has
// had. Source follows one publisher, which is one data-parallel rank of one engine:
// it connects, asks for what it has missed, notices gaps and restarts, and hands
// batches on in order. What blocks mean for a choice of instance is kvindex's.
package kvevents
