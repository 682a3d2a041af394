// Package response reads what an engine's answer, or an event, says of its prefix cache, of
// tokens and of a KV transfer, and changes that for the client.
package response
