// Package testkit holds what tests of several packages share. Only tests import
// it.
//
//	Etcd, Cluster       a real etcd in its own process, which can be killed,
//	                    paused and wiped; one of several members
//	FillUp, EnableAuth  conditions of an etcd: no space left, authentication
//	Link                a TCP relay with the faults of networks
//	RawServer           answers of any bytes to what connects
//	History             every change of a key, with its time
//	Eventually, Golden  waiting for a condition; golden files
package testkit
