// Package fakevllm simulates a vLLM engine without a GPU, for tests, demos and
// benchmarks. It accepts and refuses the same requests as vLLM, and responds in
// the same forms.
//
//	prompt ids ──▶ rolling hash ──▶ next id ──▶ word ──▶ event or response
//	                    ▲              │
//	                    └──────────────┘
//
// The response is a pure function of the prompt and all tokens so far, so that
// relayed, retried and continued generations can be checked against Expected…
// without a second request. KV transfers are single-use, leased and bound to
// prompt and request, within one process or between several. Faults are
// scripted, aborts are counted, and every request is recorded as received.
//
// Mooncake engines match their legs by transfer_id. As in vLLM, a decode waits
// for a transfer that was never announced, and its text is wrong if it reads the
// blocks of another prompt.
//
// The package itself is the process around the engine: a Server runs one life,
// which is one process start, after the other, and a life serves HTTP.
//
//	exchange     one request: client, response and end of its connection,
//	             and engine.Request, its state in an engine core
//	generation   an exchange that generates: answer.Reply, the response,
//	             and connector.Leg, the source and target of its KV cache
//
// The packages below need no HTTP server and do not import this package:
//
//	engine     one core: queue, batch, cache, clock        connector  how KV caches travel, one file for each connector
//	request    bodies are read, one file for each API      model      the simulated model
//	pydantic   values of bodies, and refusals              jsontext   texts and numbers in JSON
//	answer     answers and streams, one file for each form transfer   what waits for a decode, and the side channels
//	kvcache    the prefix cache                            kvevents   the publisher of its changes
//	metrics    the page /metrics                           counters   what happened in all lives, and remarks on it
//	responses  what /v1/responses has stored
//
// Package command is the program's command line.
//
// It shares no code with the data path of the proxy, so that a bug there is not
// masked by the same bug here.
package fakevllm
