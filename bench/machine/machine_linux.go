package machine

import (
	"cmp"
	"fmt"
	"strings"
	"syscall"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Tree returns a process and all its descendants. The process is first.
func Tree(pid int) []int {
	procs, err := procfs.AllProcs()
	if err != nil {
		return []int{pid}
	}
	parents := make(map[int]int)
	for _, p := range procs {
		if stat, err := p.Stat(); err == nil { // otherwise the process has ended
			parents[p.PID] = stat.PPID
		}
	}
	tree := []int{pid}
	for i := 0; i < len(tree); i++ {
		for child, parent := range parents {
			if parent == tree[i] {
				tree = append(tree, child)
			}
		}
	}
	return tree
}

// Memory returns the resident memory of the processes in KiB.
func Memory(pids []int) (int64, error) {
	var sum int64
	for _, pid := range pids {
		p, err := procfs.NewProc(pid)
		if err != nil {
			return 0, err
		}
		stat, err := p.Stat()
		if err != nil {
			return 0, err
		}
		sum += int64(stat.ResidentMemory()) >> 10
	}
	return sum, nil
}

// CPU returns the processor time of the processes in seconds since their start. It reads the clocks
// of the processes, which count all their threads, also ended ones. The number of a clock is that
// of clock_getcpuclockid(3).
func CPU(pids []int) (float64, error) {
	const schedClock = 2
	var sum float64
	for _, pid := range pids {
		var ts unix.Timespec
		if err := unix.ClockGettime(int32(^pid<<3|schedClock), &ts); err != nil { //nolint:gosec // process IDs have 22 bits
			return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
		}
		sum += float64(ts.Nano()) / 1e9
	}
	return sum, nil
}

// Times returns the processor time of all cores in seconds since the start of the machine:
// the busy part, and all of it.
func Times() (busy, all float64, err error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, 0, err
	}
	stat, err := fs.Stat()
	c := stat.CPUTotal // guests count as user, too
	busy = c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal
	return busy, busy + c.Idle + c.Iowait, err
}

// RaiseFiles raises the limit of open descriptors of this process and of its future children
// as far as permitted, and returns the limit.
func RaiseFiles() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 1024
	}
	const plenty = 200_000
	for _, n := range []uint64{max(l.Max, plenty), l.Max} { // the first one requires a privilege if it is above l.Max
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n}) == nil {
			return int(min(n, 10*plenty))
		}
	}
	return 1024
}

func (f *Facts) fill() {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return
	}
	if cpus, err := fs.CPUInfo(); err == nil && len(cpus) > 0 {
		f.CPU, f.Cores = cmp.Or(cpus[0].ModelName, f.CPU), len(cpus) // NumCPU counts only those this process may use
	}
	if m, err := fs.Meminfo(); err == nil && m.MemTotal != nil {
		f.Memory = int64(*m.MemTotal >> 10) //nolint:gosec // fits
	}
	if v, err := fs.SysctlStrings("kernel.osrelease"); err == nil {
		f.Kernel = "Linux " + strings.Join(v, " ")
	}
}
