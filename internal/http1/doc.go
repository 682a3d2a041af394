// Package http1 is the grammar of HTTP/1.1: what front, upstream, framing and the
// benchmark know of heads, fields, lengths and chunks. It reads and writes bytes in
// memory; connections are the callers'.
//
//	HeadLen ─ SplitHead ─▶ start line ─ ParseStatusLine
//	                 └───▶ fields ───── HeadCache.Parse, or NextField
//	ChunkDecoder, AppendField, AppendChunkSize, Buffer
//
// Whatever two readers could read in two ways is an error: who frames messages oddly
// must not make one client get another's answer (RFC 9112, 6.3 and 11).
package http1
