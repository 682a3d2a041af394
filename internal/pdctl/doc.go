// Package pdctl is the operator's tool as a function: its commands read and
// write etcd directly, need no proxy and no agent, and print tables for people
// or JSON for scripts.
//
// Each group of commands is a package that imports session (the settings, the output and
// the connection of one run); this package imports the groups and makes the tree of them:
//
//	member      add, remove, allow, restore, forget: guarded transactions, with an audit entry
//	intent      drain, undrain, cordon, uncordon, weight, wait
//	show        list, get, watch, history, status: every entry, usable or not, and why not
//	diagnose    doctor
//	route, events, mooncake, auth, transfer (export, import)
//
// Whatever was read from etcd or from an engine is escaped before it is shown.
// Exit codes: 0 done, 1 failed, 2 wrong usage; 3 and 4 of commands that wait for proxies,
// 5 of doctor.
package pdctl
