package machine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// Tree returns a process and all its descendants. The process is first.
func Tree(pid int) []int {
	parents := make(map[int]int)
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return []int{pid}
	}
	for _, dir := range dirs {
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue // the process has ended
		}
		// The name of the program, in parentheses, may contain any character.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		id, err1 := strconv.Atoi(filepath.Base(dir))
		parent, err2 := strconv.Atoi(fields[1])
		if err1 == nil && err2 == nil {
			parents[id] = parent
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
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return 0, fmt.Errorf("process %d: %w", pid, err)
		}
		_, rss, _ := strings.Cut(string(status), "VmRSS:")
		kib := int64(0)
		_, _ = fmt.Sscan(rss, &kib) // a process that has ended has none
		sum += kib
	}
	return sum, nil
}

// CPU returns the processor time of the processes in seconds since their start.
func CPU(pids []int) (float64, error) {
	var sum float64
	for _, pid := range pids {
		cpu, err := cpuTime(pid)
		if err != nil {
			return 0, err
		}
		sum += cpu
	}
	return sum, nil
}

// Times returns the processor time of all cores in seconds since the start of the machine:
// the busy part, and all of it.
func Times() (busy, all float64, err error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("processor time of the machine: %w", err)
	}
	line, _, _ := bytes.Cut(data, []byte{'\n'})
	// user nice system idle iowait irq softirq steal; guests count as user, too.
	for i, text := range strings.Fields(string(line))[1:9] {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("processor time of the machine: %w", err)
		}
		const hertz = 100
		all += n / hertz
		if i != 3 && i != 4 {
			busy += n / hertz
		}
	}
	return busy, all, nil
}

// cpuTime reads the clock of a process, which counts all its threads, also ended ones. The
// number of the clock is that of clock_getcpuclockid(3).
func cpuTime(pid int) (float64, error) {
	const schedClock = 2
	clock := uintptr(^pid<<3 | schedClock)
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, errno)
	}
	return float64(ts.Sec) + float64(ts.Nsec)/1e9, nil
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
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, ok := bytes.Cut(info, []byte("model name")); ok {
			line, _, _ := bytes.Cut(rest, []byte("\n"))
			f.CPU = strings.TrimLeft(string(line), "\t :")
		}
		if n := bytes.Count(info, []byte("processor\t")); n > 0 {
			f.Cores = n // NumCPU counts only those this process may use
		}
	}
	var system syscall.Sysinfo_t
	if syscall.Sysinfo(&system) == nil {
		f.Memory = int64(system.Totalram) * int64(system.Unit) >> 20 //nolint:gosec,unconvert // fits; other types elsewhere
	}
	if v, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		f.Kernel = "Linux " + strings.TrimSpace(string(v))
	}
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) == nil {
		f.Files = int(min(l.Max, 1<<30))
	}
}
