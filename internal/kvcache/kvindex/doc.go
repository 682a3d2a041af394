// Package kvindex records which blocks of tokens are in which instance's KV cache, from the events that the
// instances publish (kvevents), and finds how much of a prompt each instance holds.
//
// Engines name blocks differently: the names depend on the version, the hash algorithm and the process. Here
// the name of a block is a hash of its tokens, the name of its predecessor, and everything else that it
// depends on: the adapter (LoRA), cache_salt, images. So a prompt has the same names for all instances with
// the same block size.
//
// Only blocks on the GPU count ("medium" GPU, or absent), since an engine can use them at once. Copies in
// lower tiers and on other machines are ignored. If the layers of a model have several groups of blocks, only
// the groups with full attention count, and a block counts only while all of them have it. The other groups
// (sliding window, Mamba) keep only the end of a prompt.
package kvindex
