// Package http1 is the grammar of HTTP/1.1 for upstream and the benchmark: heads,
// fields, lengths and chunks. It reads and writes bytes in memory and uses no
// connections.
//
//	HeadLen ─ SplitHead ─▶ start line ─ ParseStatusLine
//	                 └───▶ fields ───── HeadCache.Parse, or NextField
//	ChunkDecoder, AppendField, Buffer
//
// A message that two readers could read in two ways is an error: odd framing must not
// send one client another's answer (RFC 9112, 6.3 and 11).
package http1
