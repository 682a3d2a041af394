package compose

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Ports hands out ports of the loopback. The zero value is not usable.
type Ports struct {
	// Taken holds what was handed out, by service:port of the file. What is in
	// it beforehand is handed out again.
	Taken map[string]int
	// Published leaves published ports as they are.
	Published bool
	// Next returns a port that nobody has.
	Next func() (int, error)
}

// Process is a service as a process of this machine.
type Process struct {
	Name  string
	Args  []string // the program's name first
	Env   []string // NAME=value, sorted
	Check []string // command of the health check; empty for none
	// After are the services to start before; true: and to find healthy.
	After map[string]bool
	// Level orders the end: higher ones go first.
	Level int
	Grace time.Duration // between SIGTERM and SIGKILL
	// Listens are the addresses that this process serves at, host:port.
	Listens []string
}

// defaultGrace is what compose grants when a file says nothing.
const defaultGrace = 10 * time.Second

// Plan makes a process of every service. dir is where volumes become
// directories. The processes come in an order in which they can be started.
func (f *File) Plan(dir string, ports *Ports) ([]Process, error) {
	p := planner{f: f, dir: dir, ports: ports, listens: map[string][]string{}}
	p.place = regexp.MustCompile(`(^|[^A-Za-z0-9_.-])(` + alternatives(f.Names()) + `|0\.0\.0\.0|127\.0\.0\.1|localhost):([0-9]+)`)
	var out []Process
	for _, name := range f.Names() {
		proc, err := p.process(name)
		if err != nil {
			return nil, fmt.Errorf("%w: service %s: %w", ErrFile, name, err)
		}
		out = append(out, proc)
	}
	for i := range out {
		out[i].Listens = slices.Sorted(slices.Values(p.listens[out[i].Name]))
		level, err := f.level(out[i].Name, 0)
		if err != nil {
			return nil, err
		}
		out[i].Level = level
	}
	slices.SortStableFunc(out, func(a, b Process) int { return cmp.Compare(a.Level, b.Level) })
	return out, nil
}

// alternatives is a pattern for one of the names, the longest first.
func alternatives(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = regexp.QuoteMeta(n)
	}
	slices.SortFunc(quoted, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	return strings.Join(quoted, "|")
}

// level is the length of the longest chain of dependencies.
func (f *File) level(name string, depth int) (int, error) {
	if depth > len(f.Services) {
		return 0, fmt.Errorf("%w: services depend on each other in a circle, %s among them", ErrFile, name)
	}
	level := 0
	for other := range f.Services[name].DependsOn {
		l, err := f.level(other, depth+1)
		if err != nil {
			return 0, err
		}
		level = max(level, l+1)
	}
	return level, nil
}

type planner struct {
	f       *File
	dir     string
	ports   *Ports
	place   *regexp.Regexp
	listens map[string][]string
}

func (p *planner) process(name string) (Process, error) {
	s := p.f.Services[name]
	proc := Process{Name: name, Grace: time.Duration(s.StopGrace), After: map[string]bool{}}
	if proc.Grace == 0 {
		proc.Grace = defaultGrace
	}
	for other, d := range s.DependsOn {
		proc.After[other] = d.Condition == "service_healthy"
	}
	var err error
	if proc.Args, err = p.texts(name, s.Command); err != nil {
		return Process{}, err
	}
	for _, key := range slices.Sorted(maps.Keys(s.Environment)) {
		value, err := p.setting(name, key, s.Environment[key])
		if err != nil {
			return Process{}, err
		}
		proc.Env = append(proc.Env, key+"="+value)
	}
	if test := s.Healthcheck.Test; len(test) > 0 {
		if test[0] != "CMD" {
			return Process{}, fmt.Errorf("health check %q: the images have no shell, begin it with CMD", test)
		}
		if proc.Check, err = p.texts(name, test[1:]); err != nil {
			return Process{}, err
		}
	}
	return proc, nil
}

// texts rewrites the arguments of a command.
func (p *planner) texts(name string, args []string) ([]string, error) {
	out := make([]string, len(args))
	for i, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		if !ok || !strings.HasPrefix(key, "--") {
			key, value = "", arg
		}
		value, err := p.setting(name, strings.TrimPrefix(key, "--"), value)
		if err != nil {
			return nil, err
		}
		if out[i] = value; key != "" {
			out[i] = key + "=" + value
		}
	}
	return out, nil
}

// setting rewrites the value of a flag or a variable, or with key "" a bare
// argument.
func (p *planner) setting(name, key, value string) (string, error) {
	word := strings.ToLower(key[max(strings.LastIndexAny(key, "-_"), -1)+1:])
	_, isService := p.f.Services[value]
	switch {
	case word == "port":
		port, err := strconv.Atoi(value)
		if err != nil {
			return "", fmt.Errorf("%s: %q is no port", key, value)
		}
		port, err = p.port(name, port)
		return strconv.Itoa(port), err
	case word == "host" && (isService || value == "0.0.0.0"):
		return "127.0.0.1", nil
	}
	for _, n := range p.f.Networks {
		for _, c := range n.IPAM.Config {
			if c.Subnet != "" && value == c.Subnet {
				return "127.0.0.0/8", nil
			}
		}
	}
	for _, v := range p.f.Services[name].Volumes {
		volume, path, _ := strings.Cut(v, ":")
		if rest, ok := strings.CutPrefix(value, path); ok && (rest == "" || rest[0] == '/') {
			return filepath.Join(p.dir, "volumes", volume) + rest, nil
		}
	}
	var failed error
	value = p.place.ReplaceAllStringFunc(value, func(s string) string {
		m := p.place.FindStringSubmatch(s)
		at := m[2]
		if _, ok := p.f.Services[at]; !ok {
			at = name // its own
		}
		port, err := strconv.Atoi(m[3])
		if err == nil {
			port, err = p.port(at, port)
		}
		if err != nil {
			failed = err
		}
		return m[1] + net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	})
	return value, failed
}

// port is where a port of a service is on the loopback.
func (p *planner) port(name string, port int) (int, error) {
	if other, ok := strings.CutPrefix(p.f.Services[name].NetworkMode, "service:"); ok {
		name = other
	}
	at := name + ":" + strconv.Itoa(port)
	got, ok := p.ports.Taken[at]
	if !ok {
		var err error
		if got, err = p.choose(name, port); err != nil {
			return 0, err
		}
		p.ports.Taken[at] = got
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(got))
	if !slices.Contains(p.listens[name], address) {
		p.listens[name] = append(p.listens[name], address)
	}
	return got, nil
}

func (p *planner) choose(name string, port int) (int, error) {
	for _, pub := range p.f.Services[name].Ports {
		parts := strings.Split(pub, ":")
		if p.ports.Published && len(parts) >= 2 && parts[len(parts)-1] == strconv.Itoa(port) {
			host, err := strconv.Atoi(parts[len(parts)-2])
			if err != nil {
				return 0, fmt.Errorf("ports: %q", pub)
			}
			return host, nil
		}
	}
	return p.ports.Next()
}
