// Package sse cuts a stream into its events and reports what each means for the request that
// it answers.
package sse
