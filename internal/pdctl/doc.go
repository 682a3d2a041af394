// Package pdctl is the operator's tool as a function: its commands read and
// write etcd directly, need no proxy and no agent, and print tables for people
// or JSON for scripts.
//
//	add, remove       write in guarded transactions, with an audit entry
//	list, get, watch  show every entry, usable or not, and why not
//	status            etcd's health and who is present
//
// Whatever was read from etcd or from an engine is escaped before it is shown.
// Exit codes: 0 done, 1 failed, 2 wrong usage; 3 and 4 of commands that wait for proxies.
package pdctl
