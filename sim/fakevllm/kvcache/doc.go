// Package kvcache is the paged KV cache of one engine core: blocks of a fixed
// number of tokens, found again by a hash of all tokens up to their end, and
// taken from the least recently used end of those that no request holds.
//
//	Take ──▶ hits + new blocks ──▶ Computed ──▶ Append ... ──▶ Free
//
// As in vLLM's block pool a freed block keeps what is in it until it is needed
// for something else, the last block of a prompt is given up first, and at least
// one token of a prompt is always computed.
package kvcache
