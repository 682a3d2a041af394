// Package machine reads what the operating system knows: what a process and
// its children cost (processor time, memory, descriptors), and what machine
// this is. Linux only; elsewhere every call says so.
package machine
