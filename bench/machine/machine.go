// Package machine reads the processor time and the memory of processes, and describes the
// machine. It supports Linux; elsewhere its functions return ErrUnknown.
package machine

import (
	"errors"
	"runtime"
)

// ErrUnknown is returned on systems other than Linux.
var ErrUnknown = errors.New("not known on this system")

// Facts is the description of a machine in a report.
type Facts struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory int64  `json:"memory_mib"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

// Describe returns the facts about this machine. Unknown ones are empty.
func Describe() Facts {
	f := Facts{CPU: runtime.GOARCH, Cores: runtime.NumCPU(), Kernel: runtime.GOOS, Go: runtime.Version()}
	f.fill()
	return f
}
