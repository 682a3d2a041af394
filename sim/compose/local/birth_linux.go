package local

import (
	"bytes"
	"os"
	"strconv"
)

// birth is when a process was started, in the kernel's own words, and whether it
// runs. One that has ended and that nobody has waited for does not.
func birth(pid int) (born string, running bool) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", false
	}
	// pid (name) state ppid ...: the name may hold anything, a bracket too.
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	const state, start = 0, 19 // the third and the 22nd field of the line
	if len(fields) <= start {
		return "", false
	}
	s := fields[state][0]
	return string(fields[start]), s != 'Z' && s != 'X'
}
