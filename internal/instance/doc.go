// Package instance has the types of the domain: vLLM instances, their roles, and
// three separate kinds of state.
//
//	State   the state in the record in etcd   (written by the agent, if there is one)
//	View    a proxy's assessment              (never part of the record)
//	Intent  an operator's setting             (an override key, takes precedence over the record)
//
// It imports the standard library only, so that every other package can use it.
package instance
