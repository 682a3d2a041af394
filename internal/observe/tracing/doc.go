// Package tracing creates OpenTelemetry traces of requests. The trace of a request has the stages in
// the proxy and both legs; the engines add spans below the legs.
//
//	POST /v1/completions        the request, below the client's span if it sent one
//	├─ pick prefill
//	├─ prefill                  the leg; the engine's traceparent names it
//	├─ kv transfer              from prefill's answer to decode's first content
//	├─ pick decode
//	└─ decode                   the leg, with an event "first token"
//
// A trace has names, addresses, times and outcomes, but no part of a prompt or a response.
// A nil Tracer disables tracing, and a nil Request is not traced: all methods accept a nil
// receiver, do nothing and allocate nothing.
package tracing
