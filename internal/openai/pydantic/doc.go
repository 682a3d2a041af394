// Package pydantic reads values as vLLM does, through pydantic in its lax mode, and has the
// words in which vLLM 0.32 refuses a request.
package pydantic
