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

// Tree lists a process and all its descendants, itself first.
func Tree(pid int) []int {
	parents := make(map[int]int)
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return []int{pid}
	}
	for _, dir := range dirs {
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue // it has ended
		}
		// The name before the last parenthesis may contain anything.
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

// Read adds up what the processes use.
func Read(pids []int) (Usage, error) {
	var u Usage
	for _, pid := range pids {
		cpu, err := cpuTime(pid)
		if err != nil {
			return u, err
		}
		u.CPU += cpu
		status, err := os.ReadFile(proc(pid, "status"))
		if err != nil {
			return u, fmt.Errorf("process %d: %w", pid, err)
		}
		u.RSS += field(status, "VmRSS:")
		u.Peak += field(status, "VmHWM:")
		files, sockets := descriptors(pid)
		u.Files += files
		u.Sockets += sockets
	}
	return u, nil
}

// Memory is RSS in KiB alone, cheaper than Read.
func Memory(pids []int) (int64, error) {
	var sum int64
	for _, pid := range pids {
		status, err := os.ReadFile(proc(pid, "status"))
		if err != nil {
			return 0, fmt.Errorf("process %d: %w", pid, err)
		}
		sum += field(status, "VmRSS:")
	}
	return sum, nil
}

// CPU is processor time in seconds alone.
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

// Times are the processor seconds of all cores since the start of the machine: those
// in which somebody ran, and all of them.
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

// ResetPeak lets Usage.Peak begin again.
func ResetPeak(pids []int) error {
	for _, pid := range pids {
		if err := os.WriteFile(proc(pid, "clear_refs"), []byte("5"), 0); err != nil {
			return fmt.Errorf("reset the peak of memory: %w", err)
		}
	}
	return nil
}

// cpuTime reads the clock that counts the processor time of all threads of a
// process, ended ones included (clock_getcpuclockid(3) computes its number so).
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

// descriptors counts; 0 when the process is not ours to look at.
func descriptors(pid int) (files, sockets int) {
	entries, err := os.ReadDir(proc(pid, "fd"))
	if err != nil {
		return 0, 0
	}
	for _, e := range entries {
		to, err := os.Readlink(proc(pid, "fd/"+e.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		files++
		if strings.HasPrefix(to, "socket:") {
			sockets++
		}
	}
	return files, sockets
}

// RaiseFiles raises the limit of open descriptors of this process, and of the
// children that it starts, as far as it may, and returns it.
func RaiseFiles() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 1024
	}
	const plenty = 200_000
	if l.Max < plenty {
		more := syscall.Rlimit{Cur: plenty, Max: plenty}
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &more) == nil {
			return plenty
		}
	}
	l.Cur = l.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 1024
	}
	return int(min(l.Max, 10*plenty))
}

func proc(pid int, file string) string { return "/proc/" + strconv.Itoa(pid) + "/" + file }

// field reads a number from a file of lines "Name:   123 kB".
func field(file []byte, name string) int64 {
	i := bytes.Index(file, []byte(name))
	if i < 0 {
		return 0
	}
	words := bytes.Fields(file[i+len(name):][:min(40, len(file)-i-len(name))])
	if len(words) == 0 {
		return 0
	}
	n, err := strconv.ParseInt(string(words[0]), 10, 64)
	if err != nil {
		return 0
	}
	return n
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
	if info, err := os.ReadFile("/proc/meminfo"); err == nil {
		f.Memory = field(info, "MemTotal:") / 1024
	}
	if v, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		f.Kernel = "Linux " + strings.TrimSpace(string(v))
	}
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) == nil {
		f.Files = int(min(l.Max, 1<<30))
	}
}
