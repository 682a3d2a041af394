// Package machine reads the processor time and the memory of processes, and describes the
// machine. It supports Linux; elsewhere its functions return ErrUnknown.
package machine
