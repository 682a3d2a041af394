// Package config reads flags, environment variables, a YAML file and defaults into one
// checked struct.
//
//	flags  >  environment (PD_...)  >  file (--config)  >  defaults
//
// Proxy.Settings is its table of settings. Each group of settings is a type (Clients, Etcd,
// ...) with a field for every setting, its line of the table and its check. Package settings
// defines how settings are named, read and printed, also for the agent and pdctl; this
// package defines which values are valid and what follows from them.
//
// The command lines of the example proxies of vLLM, vllm-ascend and LMCache are accepted
// (reference.go, reference_lists.go): their flags set our settings, and exist on the command
// line only. docs/migrate has a page for each, docs/adr/0011 the reasons.
package config
