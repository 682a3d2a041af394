// Package vllmargs reads what a vLLM command line says about the engine that
// it will start: address, model names, key, sizes, and its --kv-transfer-config,
// from which follow role and KV-transfer dialect.
//
// It is for facts that would otherwise be told twice. It reads the spellings
// that vLLM's parser takes (--flag=value, --flag value, underscores for dashes,
// --kv-transfer-config.field value, short names, the last one wins) and leaves
// everything else alone: whether the command is right is vLLM's to say.
package vllmargs
