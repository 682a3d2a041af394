// Package certs loads certificates, keys and authorities from files, reloads them when the files
// change, and explains why a handshake failed. If a changed file cannot be used, the old one stays
// active and the problem is reported.
package certs
