// Package accesslog writes one line per request. Prompts and keys are never
// part of it.
//
// The lines look like those of the program's logger, but do not go through it:
// they are encoded into a buffer, which a goroutine of its own writes out ten
// times a second. So a request never waits for a disk or for whoever reads the
// program's output, and a line costs a fraction of a microsecond.
package accesslog
