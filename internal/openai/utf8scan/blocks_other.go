//go:build !amd64 || purego

package utf8scan

// blocks passes nothing where there is no assembly.
func blocks([]byte) int { return 0 }
