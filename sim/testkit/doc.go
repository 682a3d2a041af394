// Package testkit holds what tests of several packages share. Only tests import
// it.
//
//	Etcd, EtcdProcess, Cluster  a real etcd: in the test's process; in one that
//	                            can be killed, paused and wiped; of several members
//	FillUp, EnableAuth          what befalls an etcd: no space left, authentication
//	Link                        a TCP relay with the faults of networks
//	RawServer                   answers of any bytes to what connects
//	History                     every change of a key, with its time
//	Eventually, Golden          waiting for a condition; golden files
package testkit
