// Package answers compares the responses of two servers to the same request: a single vLLM, and the proxy in
// front of several. A response is normalized by removing what differs between runs (IDs, times, the
// distribution of tokens over events), and a list of rules, each with a reason, allows other differences.
package answers
