// Package model is the simulated model: what it makes of text, and which token follows which.
// It has no randomness and no state but the tokens so far.
package model
