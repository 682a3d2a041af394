// Package response reads the prefix cache usage, the tokens and the KV transfer params in an
// engine's response or event, and rewrites them for the client.
package response
