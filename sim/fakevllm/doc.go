// Package fakevllm is a vLLM without a GPU: an engine for tests, demos and
// benchmarks that takes and refuses what vLLM takes and refuses, and answers
// in its shapes.
//
//	prompt ids ──▶ rolling hash ──▶ next id ──▶ word ──▶ event or response
//	                    ▲              │
//	                    └──────────────┘
//
// The answer is a pure function of the prompt and of all tokens so far, so
// that whatever relays, retries or continues a generation can be checked
// against Expected… without a second request. KV transfers are single-use,
// leased and bound to prompt and request, in one process or between several.
// Faults are scripted, aborts counted, and every request recorded as it came.
//
// Mooncake engines know their legs by transfer_id; a decode
// waits for whatever vLLM does not report to it, and its text is wrong with the blocks of
// another prompt.
//
// The package itself is the process around the engine: a Server has one life after the
// other, and a life answers HTTP.
//
//	exchange     one request: client, what is written and how its connection ends,
//	             and engine.Request, its place in an engine core
//	generation   an exchange that makes an answer: answer.Reply, the answer,
//	             and connector.Leg, whence its KV cache comes and where that goes
//
// The packages below need no HTTP server and do not import this package:
//
//	engine     one core: queue, batch, cache, clock        connector  how KV caches travel, one file for each connector
//	request    bodies are read, one file for each API      model      the simulated model
//	pydantic   what is taken, and the words of refusals    jsontext   texts and numbers in JSON
//	kvparams   kv_transfer_params as each connector reads  transfer   what waits for a decode, and the side channels
//	kvcache    the prefix cache                            kvevents   the publisher of its changes
//	metrics    the page /metrics
//	fault      scripted faults                             record     the requests that came
//	conns      connections that end by RST                 answer     answers and streams, one file for each form
//	responses  what /v1/responses has stored               counters   what happened in all lives, and remarks on it
//
// Package command is the program's command line.
//
// It shares no code with the data path of the proxy: a mistake there must not
// hide behind the same mistake here.
package fakevllm
