// Package instance holds the words of the domain: which vLLM instances exist,
// in which role, and in which of three separate lists of states.
//
//	State   what the record in etcd says   (written by the instance's side)
//	View    what this proxy thinks of it   (never written to etcd)
//	Intent  what an operator wants         (an override key, wins over the record)
//
// It imports the standard library only, so that every other package can use it.
package instance
