//go:build unix && !linux

package local

import (
	"os/exec"
	"strconv"
	"strings"
)

// birth is when a process was started, as ps tells it, and whether it runs. One
// that has ended and that nobody has waited for does not.
func birth(pid int) (born string, running bool) {
	out, err := exec.Command("ps", "-o", "state=,lstart=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return "", false
	}
	state, start, ok := strings.Cut(strings.TrimSpace(string(out)), " ")
	return strings.TrimSpace(start), ok && !strings.HasPrefix(state, "Z")
}
