// Package relay carries one answer to one client: it holds it back until it is
// committed, streams it event by event, rewrites what has to be true for the client,
// and breaks it visibly when it cannot be completed.
//
//	leg's answer ──hold──▶ commit ──▶ Client
//	                │ any failure before: a leg.Failure to the caller
//	                └ after: an error event and a broken connection
//
// It knows neither instances nor the order of legs.
package relay
