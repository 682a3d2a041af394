package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/sim/fleet"
)

// Kind is how requests get from the generator to the engines.
type Kind int

// The kinds of targets.
const (
	// Direct is one hop to an engine, no process in between.
	Direct Kind = iota
	// TwoHop is prefill, then decode, by the generator itself.
	TwoHop
	// Nginx is a plain reverse proxy: one hop, no prefill.
	Nginx
	// Floor is what two hops cost in system calls, see package floor.
	Floor
	// Mesh is our proxy.
	Mesh
	// Router is vllm-router, vLLM's own, in its prefill and decode mode.
	Router
	// Command is any other proxy.
	Command
)

// Spec is something to measure.
type Spec struct {
	Name string
	Kind Kind
	// Program is nginx or vllm-router, or the proxy when not that of BinDir.
	Program string
	// Command and Ready belong to the kind Command: a line for the shell, and
	// the path that answers with 200 once it serves.
	Command, Ready string
	// Flags go to our proxy in addition.
	Flags []string
	// Extra targets answer a question of their own, and are measured when they are named.
	Extra bool
}

// ErrSpec is wrapped by complaints about a --target.
var ErrSpec = errors.New("not a target")

// Known lists the targets that have a name.
func Known() []Spec {
	return []Spec{
		{Name: "direct", Kind: Direct},
		{Name: "two-hop", Kind: TwoHop},
		{Name: "nginx", Kind: Nginx, Program: "nginx"},
		{Name: "vllm-router", Kind: Router, Program: "vllm-router"},
		{Name: "floor", Kind: Floor},
		{Name: "pdmesh", Kind: Mesh},
		// The difference to pdmesh is the gain of our own upstream client.
		{Name: "pdmesh-std", Kind: Mesh, Flags: []string{"--upstream", "std"}},
		// What traces cost: beside pdmesh, with a collector that takes all and does nothing.
		{Name: "pdmesh-traced", Kind: Mesh, Extra: true, Flags: []string{"--otlp-endpoint", "{collector}", "--trace-sample", "0.01"}},
	}
}

// Policies lists the targets that are our proxy with one policy, by the names of the
// policies: for both roles, but those that know caches for prefill only, which is what they
// are for.
func Policies() []Spec {
	var out []Spec
	for _, name := range policy.Names() {
		decode := name
		if name == policy.DefaultPrefill || name == policy.KVAware {
			decode = policy.Default
		}
		out = append(out, Spec{Name: name, Kind: Mesh, Flags: []string{"--prefill-policy", name, "--decode-policy", decode}})
	}
	return out
}

// KnownNames lists the names of Known.
func KnownNames() []string {
	var names []string
	for _, s := range Known() {
		names = append(names, s.Name)
	}
	return names
}

// UsualNames lists the names of those that are measured where none are named.
func UsualNames() []string {
	var names []string
	for _, s := range Known() {
		if !s.Extra {
			names = append(names, s.Name)
		}
	}
	return names
}

// ParseSpec reads a target from the command line: the name of a known one, or
// NAME[@/READY/PATH]=COMMAND with placeholders.
func ParseSpec(s string) (Spec, error) {
	for _, known := range slices.Concat(Known(), Policies()) {
		if known.Name == s {
			return known, nil
		}
	}
	name, command, ok := strings.Cut(s, "=")
	if !ok || name == "" || !strings.Contains(command, "{port}") {
		return Spec{}, fmt.Errorf("%w: %q: use %s, or 'name=command with {port}, {prefill} and {decode}'", ErrSpec, s, strings.Join(KnownNames(), ", "))
	}
	spec := Spec{Kind: Command, Command: command, Ready: "/readyz"}
	if n, ready, ok := strings.Cut(name, "@"); ok {
		name, spec.Ready = n, ready
	}
	spec.Name = name
	return spec, nil
}

// Site is where a target stands: the engines behind it, and our proxy's etcd.
type Site struct {
	Prefill, Decode []string
	Connector       string
	Etcd, Prefix    string
}

// ErrAbsent is wrapped when a target's program is not installed.
var ErrAbsent = errors.New("not installed")

// Start starts a target of the kinds that have a process.
func (l *Lab) Start(ctx context.Context, s Spec, site Site) (*Running, error) {
	ports, err := fleet.FreePorts(2)
	if err != nil {
		return nil, err
	}
	addr := fmt.Sprintf("127.0.0.1:%d", ports[0])
	var argv []string
	ready, admin := s.Ready, addr
	switch s.Kind {
	case Mesh:
		if argv, err = l.meshCommand(s, site, ports[0]); err != nil {
			return nil, err
		}
		ready = "/readyz"
	case Router:
		if argv, err = routerCommand(s, site, ports[0]); err != nil {
			return nil, err
		}
		ready = "/health"
	case Nginx:
		program, err := exec.LookPath(s.Program)
		if err != nil {
			return nil, fmt.Errorf("nginx: %w", ErrAbsent)
		}
		conf, err := l.nginxConfig(addr, site.Decode)
		if err != nil {
			return nil, err
		}
		argv = []string{program, "-p", l.dir, "-e", "stderr", "-c", conf}
		ready = "/health"
	case Floor:
		argv = []string{l.o.Self, "floor", "--listen", addr, "--prefill", strings.Join(site.Prefill, ","), "--decode", strings.Join(site.Decode, ",")}
		ready = "/health"
	case Command:
		// Where the person who gave it stands, not in the lab's directory.
		cwd, err := os.Getwd()
		if err != nil {
			return nil, err
		}
		argv = []string{"/bin/sh", "-c", `cd "$0" && exec ` + expand(s.Command, ports[0], site), cwd}
	default:
		return nil, fmt.Errorf("%w: %s has no process", ErrSpec, s.Name)
	}
	r, err := l.launch(ctx, s.Name, l.o.TargetCore, "http://"+addr+ready, argv)
	if err != nil {
		return nil, err
	}
	r.Address, r.Admin = addr, admin
	return r, nil
}

// meshCommand is the command line of our proxy.
func (l *Lab) meshCommand(s Spec, site Site, port int) ([]string, error) {
	program := s.Program
	if program == "" {
		program = filepath.Join(l.o.BinDir, "proxy")
	}
	program, err := located(program)
	if err != nil {
		return nil, err
	}
	flags := slices.Clone(s.Flags)
	if i := slices.Index(flags, "{collector}"); i >= 0 {
		if flags[i], err = l.collect(); err != nil {
			return nil, err
		}
	}
	return append([]string{program, "--host", "127.0.0.1", "--port", fmt.Sprint(port), "--connector", site.Connector,
		"--state-dir", filepath.Join(l.dir, fmt.Sprintf("state-%d", port)),
		"--etcd-endpoints", site.Etcd, "--etcd-prefix", site.Prefix}, flags...), nil
}

// routerCommand is the command line of vllm-router: the same engines, in turn. It may
// hold as many requests at once as the workloads send.
func routerCommand(s Spec, site Site, port int) ([]string, error) {
	program, err := exec.LookPath(s.Program)
	if err != nil {
		return nil, fmt.Errorf("vllm-router: %w", ErrAbsent)
	}
	argv := []string{program, "--host", "127.0.0.1", "--port", fmt.Sprint(port), "--vllm-pd-disaggregation", "--policy", "round_robin",
		"--max-concurrent-requests", "100000", "--log-level", "warning"}
	for _, p := range site.Prefill {
		argv = append(argv, "--prefill", "http://"+p)
	}
	for _, d := range site.Decode {
		argv = append(argv, "--decode", "http://"+d)
	}
	return argv, nil
}

// expand fills the placeholders of a command line.
func expand(command string, port int, site Site) string {
	host := func(list []string) (string, string) {
		h, p, err := net.SplitHostPort(list[0])
		if err != nil {
			return list[0], ""
		}
		return h, p
	}
	ph, pp := host(site.Prefill)
	dh, dp := host(site.Decode)
	return strings.NewReplacer(
		"{port}", fmt.Sprint(port),
		"{prefill}", strings.Join(site.Prefill, " "), "{decode}", strings.Join(site.Decode, " "),
		"{prefill_csv}", strings.Join(site.Prefill, ","), "{decode_csv}", strings.Join(site.Decode, ","),
		"{prefill_host}", ph, "{prefill_port}", pp, "{decode_host}", dh, "{decode_port}", dp,
	).Replace(command)
}

// nginxConfig writes a plain reverse proxy: one worker, kept connections, no
// buffering, an access log, no limit that the workloads would meet.
func (l *Lab) nginxConfig(addr string, decode []string) (string, error) {
	var servers strings.Builder
	for _, d := range decode {
		servers.WriteString("    server " + d + ";\n")
	}
	files := l.o.Files
	if files == 0 {
		files = 1024
	}
	conf := fmt.Sprintf(`daemon off;
master_process off;
worker_processes 1;
pid %[1]s/nginx.pid;
error_log %[1]s/nginx-error.log;
events { worker_connections %[2]d; }
http {
  access_log %[1]s/nginx-access.log;
  client_body_temp_path %[1]s/nginx-body;
  proxy_temp_path %[1]s/nginx-proxy;
  fastcgi_temp_path %[1]s/nginx-fastcgi;
  uwsgi_temp_path %[1]s/nginx-uwsgi;
  scgi_temp_path %[1]s/nginx-scgi;
  keepalive_requests 1000000000;
  client_max_body_size 64m;
  client_body_buffer_size 64k;
  tcp_nodelay on;
  upstream engines {
%[3]s    keepalive 2048;
    keepalive_requests 1000000000;
    keepalive_timeout 4s;
  }
  server {
    listen %[4]s backlog=4096;
    location / {
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_request_buffering off;
      proxy_read_timeout 1h;
    }
  }
}
`, l.dir, files, servers.String(), addr)
	path := filepath.Join(l.dir, "nginx.conf")
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		return "", fmt.Errorf("nginx: %w", err)
	}
	return path, nil
}

// located makes the name of a file one that means the same everywhere, as targets do
// not run where we do. Without a separator it is looked for as a shell does.
func located(program string) (string, error) {
	if !strings.ContainsRune(program, filepath.Separator) {
		return program, nil
	}
	file, err := filepath.Abs(program)
	if err != nil {
		return "", fmt.Errorf("bench: %w", err)
	}
	return file, nil
}
