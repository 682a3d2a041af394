// Package testkit has helpers that tests of several packages share. Only tests
// import it.
//
//	Link                a TCP relay with the faults of networks
//	RawServer           a TCP server that answers with arbitrary bytes
//	Eventually, Golden  waiting for a condition; golden files
package testkit
