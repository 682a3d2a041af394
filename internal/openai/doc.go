// Package openai has the words of the APIs that generate: the endpoints, their errors,
// the ids of stored responses. What the proxy reads and changes of bodies is in packages
// under it, each of which knows only those before it:
//
//	jsonscan   the scanner of JSON: positions in bytes, nothing is built
//	pydantic   values as vLLM reads them, and its words for those that it refuses
//	splice     a body made of pieces of another one
//	request    a request: what it asks for, what vLLM would refuse, the edit of a leg
//	form       a request that is a form
//	sse        the events of a stream
//	response   what an engine's answer reports about its cache and the KV transfer
//
//	client body ──request.Parse──▶ Request ──NewEdit──▶ Edit ──Body──▶ splice.Body
//	              (one scan)       (places)  (per leg)        (body slices + a few new bytes)
//
// A Request keeps the positions of the fields of interest in the body. A leg is made by
// splicing: unchanged bytes are shared between all legs, never copied, so unknown fields,
// large integers and odd spacing reach the engine as sent.
//
// Most of a body is the text of strings, which package jsonscan reads a word at a time.
package openai
