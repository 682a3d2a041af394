// Package dashboard is the page on which people see the fleet and change it: one HTML
// page that is part of the program, and a stream of server-sent events that fills it.
//
// A Board collects once for all who look, at most once a second, and only while
// somebody does. What it remembers without viewers is small: the changes of the
// membership, and every few seconds a point of what requests took. Requests leave their
// times in counters of their own and never wait for the Board.
//
// The page changes the fleet through the admin routes, as any other client would, with
// a key that its user types. It needs no route of its own for that.
package dashboard
