// Package config turns flags, the environment, a YAML file and defaults into
// one checked struct.
//
//	flags  >  environment (PD_...)  >  file (--config)  >  defaults
//
// Its table of settings is Proxy.Settings. Settings are in groups, each of them a type (Clients,
// Etcd, ...) with a field for every setting, its line of the table and its check. How a setting
// is named, read and printed is in package settings, for the agent and pdctl too; here is what
// the values must be, and what follows from them.
//
// The command lines of the example proxies of vLLM, vllm-ascend and LMCache are
// taken as they are (reference.go, reference_lists.go): their flags say what
// our settings are, under their own names, and exist nowhere but on the command
// line. docs/migrate has a page for each, docs/adr/0011 has the reasons.
package config
