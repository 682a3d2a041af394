package connlimit

import "syscall"

// ByDescriptors returns the number of client connections that leave enough file
// descriptors for engines and everything else, or 0 if descriptors are unlimited. Go has
// already raised the soft limit to the hard limit.
func ByDescriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return byDescriptors(uint64(limit.Cur))
}

// byDescriptors subtracts a reserve and halves the rest, because most requests also need
// one connection to an engine.
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
