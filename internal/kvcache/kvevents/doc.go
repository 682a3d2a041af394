// Package kvevents reads the events that vLLM publishes about its KV cache: which blocks of tokens an engine
// has stored, removed and cleared.
//
// Decode reads one batch as received over ZeroMQ, in both encodings of vLLM. A Source follows one publisher,
// which is one data-parallel rank of one engine: it connects, requests missed batches, detects gaps and
// restarts, and passes on batches in order. Package kvindex interprets the blocks.
package kvevents
