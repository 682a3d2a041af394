//go:build unix

package connlimit

import "syscall"

// ByDescriptors is how many clients a process may have connected so that
// descriptors are left for the engines that serve them and for everything else; 0
// where there is no end of descriptors. Go has raised the limit as far as it may.
func ByDescriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return byDescriptors(uint64(limit.Cur))
}

// byDescriptors takes a reserve off, and halves the rest: most requests have one
// connection to an engine.
func byDescriptors(n uint64) int {
	const endless = 1 << 26
	if n >= endless {
		return 0
	}
	reserve := min(max(n/8, 48), 1024)
	if n < reserve+2 {
		return 1
	}
	return int(n-reserve) / 2
}
