//go:build !amd64 || purego

package strscan

// wide tells that blocks has to pass something.
func wide() bool { return false }
