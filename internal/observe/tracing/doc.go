// Package tracing creates OpenTelemetry traces of requests. The trace of a request has the stages in
// the proxy and both legs; the engines add spans below the legs.
//
//	POST /v1/completions        the request, below the client's span if it sent one
//	├─ pick prefill
//	├─ prefill                  the leg; traceparent of the engine names it
//	├─ hand-over                KV transfer: from prefill's answer to decode's first content
//	├─ pick decode
//	└─ decode                   the leg, with an event "first token"
//
// A trace holds names, addresses, times and outcomes, and never anything of a prompt or
// of an answer. Tracing that is off is a nil Tracer, a request that is not traced a nil
// Request: all methods take a nil receiver, do nothing and allocate nothing.
package tracing
