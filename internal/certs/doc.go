// Package certs keeps certificates, keys and authorities that are read from files,
// reads them again when the files change, and says in words why a handshake failed. A
// new file that cannot be used leaves the old one active and is told of.
package certs
