// Package testkit holds what tests of several packages share. Only tests import
// it.
//
//	Link                a TCP relay with the faults of networks
//	RawServer           answers of any bytes to what connects
//	Eventually, Golden  waiting for a condition; golden files
package testkit
