// Package dashboard serves the page that shows and changes the fleet: one embedded HTML page, and a
// stream of server-sent events with its contents.
//
// A Board collects the state once for all viewers, at most once a second, and only while there are
// viewers. Without viewers it keeps only the changes of the membership, and every few seconds a
// point from the metrics of this proxy.
//
// The page changes the fleet through the admin routes, like any other client, with a key that the user
// enters.
package dashboard
