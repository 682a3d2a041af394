// Package answer is what the engine of the benchmark says and the load
// generator expects, to the last byte. Both sides compute it from the request:
//
//	#0123456789abcdef lorem ...        the prompt begins with the request's tag
//	      |              `-- CRC-32C ----.
//	      v                              v
//	" 0123456789abcdef.000000.<length>.<sum>"   first token: the prompt arrived whole
//	" 0123456789abcdef.000001"                  every token: whose it is, and its number
//
// So a chunk that was lost, doubled, moved or taken from another request's
// answer is noticed at its first byte, and so is a prompt that did not reach
// the engine as it was sent.
package answer
