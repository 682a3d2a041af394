// Package continuation continues a streamed answer after its decode leg was lost.
//
//	events of a leg ──Pass──▶ events for the client     Answer records the token ids
//	leg lost ──Next──▶ the request of the next leg      prompt + ids that the client has
//	                 └ the events that are missing       if only the end is
//
// An Answer records the part of one answer that the client has. It depends neither on connectors nor
// on instances: the flow sends the requests, and passes a function that turns token ids into text.
package continuation
