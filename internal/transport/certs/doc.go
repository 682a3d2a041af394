// Package certs loads certificates, keys and certificate authorities from files, reloads them when
// the files change, and explains why a handshake failed. If a changed file is unusable, the
// previous one stays active and the problem is reported.
package certs
