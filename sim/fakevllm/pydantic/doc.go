// Package pydantic reads JSON bodies and the values in them as vLLM's request models do, and
// renders vLLM's error responses.
package pydantic
