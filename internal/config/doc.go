// Package config turns flags, the environment, a YAML file and defaults into
// one checked struct.
//
//	flags  >  environment (PD_...)  >  file (--config)  >  defaults
//
// It is the only package that knows viper. A setting has one name everywhere:
// --prefill-timeout on the command line is PD_PREFILL_TIMEOUT in the
// environment and prefill-timeout in the file. Values are read by the same
// code wherever they come from, so that "30s", "32MiB" and "on" mean the same
// in all three places, and every complaint names the setting as a flag and
// says which source the bad value came from. How a setting is named and which source wins
// is in package settings, for the agent and pdctl too.
//
// The command lines of the example proxies of vLLM, vllm-ascend and LMCache are
// taken as they are (reference.go, reference_lists.go): their flags say what
// our settings are, under their own names, and exist nowhere but on the command
// line. docs/migrate has a page for each, docs/adr/0006 says why it is so.
package config
