// Package relay relays one answer to one client: it holds the answer back until it is
// committed, streams it event by event, rewrites the parts that must differ for the client,
// and breaks the connection visibly when it cannot complete the answer.
//
//	leg's answer ──hold──▶ commit ──▶ Client
//	                │ any failure before: a leg.Failure to the caller
//	                └ after: an error event and a broken connection
//
// While nothing is to be sent, keep-alives keep the client's connection open; they may send the header of a
// stream before the commit.
//
// It knows neither instances nor the order of legs.
package relay
