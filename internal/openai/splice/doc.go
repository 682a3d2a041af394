// Package splice assembles a body from pieces of another body and new bytes between them.
package splice
