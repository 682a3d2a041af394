//go:build !amd64 || purego

package utf8scan

// wide tells that blocks has to pass something.
func wide() bool { return false }
