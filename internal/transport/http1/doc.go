// Package http1 parses and writes HTTP/1.1 heads, fields, lengths and chunks for
// package upstream. It works on bytes in memory and uses no connections.
//
//	HeadLen ─ SplitHead ─▶ start line ─ ParseStatusLine
//	                 └───▶ fields ───── HeadCache.Parse
//	ChunkDecoder, AppendField, Buffer
//
// A message with ambiguous framing is an error: a desynchronized connection must not
// return one client's response to another (RFC 9112, 6.3 and 11).
package http1
