// Package pydantic reads JSON and the values in it as vLLM does, and has its words for what
// it refuses.
package pydantic
