// Package pdctl implements the command pdctl for operators. Its commands read and
// write etcd directly, need no proxy and no agent, and print tables, or JSON for
// scripts.
//
// Each group of commands is a package that imports session (the settings, the output and
// the connection of one run). This package builds the command tree from them:
//
//	member      add, remove, allow, restore, forget: guarded transactions, with an audit entry
//	intent      drain, undrain, cordon, uncordon, weight, role, wait
//	show        list, get, watch, history, status, version: every entry, usable or not, and why not
//	fleet       diff, revert, apply, export
//	diagnose    doctor; debug is in this package, because it runs other commands
//	limit       limit, usage
//	route       route, ratio
//	auth, events, model, mooncake, top
//
// Text from etcd or from an engine is escaped before it is printed.
// Exit codes: 0 done, 1 failed, 2 wrong usage; 3 and 4 of commands that wait for proxies,
// 5 of doctor.
package pdctl
