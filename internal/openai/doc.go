// Package openai has the basic types of the generating APIs: endpoints, errors, and ids of stored
// responses. The packages below it read and edit bodies; each imports only those before it in this list:
//
//	jsonscan   a JSON scanner: positions in bytes, no values; and numbers as vLLM reads them
//	splice     a body made of pieces of another one
//	request    a request: its parameters, the values that vLLM would refuse, the edit of a leg
//	form       a request that is a form
//	sse        the events of a stream
//	response   the prefix cache usage, the tokens and the KV transfer in an engine's answer
//
//	client body ──request.Parse──▶ Request ──NewEdit──▶ Edit ──Body──▶ splice.Body
//	              (one scan)       (positions) (per leg)      (body slices + a few new bytes)
//
// A Request keeps the positions of the fields of interest in the body. A leg is made by
// splicing: unchanged bytes are shared between all legs, never copied, so unknown fields,
// large integers and unusual spacing reach the engine as sent.
//
// Most of a body is the text of strings, which package jsonscan reads a machine word at a time.
package openai
