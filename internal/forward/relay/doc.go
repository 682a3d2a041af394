// Package relay passes one answer on to one client: it holds the answer back until it is
// committed, streams it event by event, rewrites what must be different for the client,
// and breaks the connection visibly when it cannot complete the answer.
//
//	leg's answer ──hold──▶ commit ──▶ Client
//	                │ any failure before: a leg.Failure to the caller
//	                └ after: an error event and a broken connection
//
// It knows neither instances nor the order of legs.
package relay
