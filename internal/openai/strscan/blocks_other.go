//go:build !amd64 || purego

package strscan

// blocks passes nothing where there is no assembly.
func blocks([]byte) (n int, high uint64) { return 0, 0 }
