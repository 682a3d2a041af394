// Package request reads the body of a request in one pass, refuses values that vLLM would
// refuse, and edits the bodies of legs.
package request
