// Package splice makes a body of pieces of another one and a few new bytes between them.
package splice
