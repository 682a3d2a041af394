// Package sse cuts a stream into its events and tells what each means for the request that
// it answers.
package sse
