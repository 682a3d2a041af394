// Package model is the simulated model. It splits text into tokens, and determines the next token
// of a sequence. It has no randomness, and no state except the tokens so far.
package model
