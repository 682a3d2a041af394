// Package vllmargs reads the facts about an engine from its vLLM command line: address, model names,
// key, sizes, and --kv-transfer-config, which determines role and KV-transfer dialect. So users need
// not repeat them for the agent.
//
// It accepts the spellings of vLLM's parser (--flag=value, --flag value, underscores for dashes,
// --kv-transfer-config.field value, short names, the last one wins) and ignores everything else:
// vLLM validates the command.
package vllmargs
