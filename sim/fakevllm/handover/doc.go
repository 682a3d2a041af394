// Package handover is what engines of one process, or of several, keep of KV caches that wait
// for a decode, and the channel on which a decode asks for them.
package handover
