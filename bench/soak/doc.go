// Package soak loads our proxy for a long time, lets clients leave and
// instances come and go all the while, and looks whether anything grows: what
// leaks a little per request shows in a slope, not in a figure.
package soak
