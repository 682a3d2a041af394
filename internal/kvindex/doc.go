// Package kvindex knows which blocks of tokens are in which instance's KV cache, from
// what the instances publish (kvevents), and tells for a prompt how much of it each of
// them has.
//
// How an engine names blocks is its own affair: names differ between versions, hash
// algorithms and processes. Here a block's name is made of its tokens, its
// predecessor's name, and what else it depends on: the adapter (LoRA), cache_salt,
// images. So the same prompt has the same names for all instances whose blocks have
// the same size.
//
// What counts is what a prompt can be computed from at once: blocks on the GPU
// ("medium" GPU, or unsaid). Copies in lower tiers and on other machines are left out.
// Of a model whose layers have several groups of blocks, those with full attention
// count, and a block only while all of these groups have it: the others (sliding
// window, Mamba) keep the end of a prompt only, and say nothing about its length.
package kvindex
