// Package request reads the body of a request in one pass, refuses what vLLM would refuse,
// and edits what a leg carries.
package request
