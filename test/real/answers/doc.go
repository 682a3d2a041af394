// Package answers compares what two servers answered to the same request: one
// vLLM alone, and the proxy in front of several. An answer is brought into a
// form without what may differ from one run to the next (ids, times, how tokens
// are packed into events), and a list says which other differences are allowed,
// with a reason for each.
package answers
