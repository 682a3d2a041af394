package machine

import (
	"errors"
	"runtime"
)

// ErrUnknown is wrapped when the operating system does not tell.
var ErrUnknown = errors.New("not known on this system")

// Usage is what a process and its descendants use.
type Usage struct {
	// CPU is processor time in seconds since the start, to the nanosecond.
	CPU float64
	// RSS and Peak are resident memory in KiB, now and at most since ResetPeak.
	RSS, Peak int64
	// Files are open descriptors, Sockets those of them that are sockets.
	Files, Sockets int
}

// Facts describe a machine for a report.
type Facts struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory int64  `json:"memory_mib"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	// Files is the limit of open descriptors per process.
	Files int `json:"files"`
}

// Describe reports what it can.
func Describe() Facts {
	f := Facts{CPU: runtime.GOARCH, Cores: runtime.NumCPU(), Kernel: runtime.GOOS, Go: runtime.Version()}
	f.fill()
	return f
}
