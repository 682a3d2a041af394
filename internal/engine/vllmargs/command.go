package vllmargs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Command is what a command line says about the engine it starts. What it does
// not say is empty or zero.
type Command struct {
	VLLM   bool              // it is recognised as vLLM's API server, so that vLLM's defaults hold
	Env    map[string]string // set in front of it: env NAME=value ...
	Host   string            // as written, "" for vLLM's default, which is every address
	Port   int               // 8000 for vLLM without one; 0 when unknown
	TLS    bool
	Model  string   // the path or name of the weights
	Served []string // names the API shows instead of it
	APIKey string   // the first key

	// TensorParallel and PipelineParallel are 1 for vLLM without a size; 0 if unknown.
	TensorParallel   int
	PipelineParallel int
	// DataParallel is how many ranks answer behind this one address.
	DataParallel int
	Ranks        Ranks

	Scheduling string // --scheduling-policy, "" for vLLM's default, fcfs

	ConfigFile string // --config: a file that is not read here
	Transfer   Transfer
	Events     Events
}

// Ranks are the data-parallel ranks of which a command starts some. It is zero for a
// command that says nothing of data parallelism.
type Ranks struct {
	Total int // of the group, on all machines
	First int // of those that this command starts
	Local int // their number; 0 if the command only serves the API of a group
}

// Elsewhere reports whether other commands start all ranks of the group.
func (r Ranks) Elsewhere() bool { return r.Total > 0 && r.Local == 0 }

// defaultPort of vLLM's API server.
const defaultPort = 8000

// ParseCommand reads a whole command line, the program first.
func ParseCommand(argv []string) (Command, error) {
	var c Command
	argv = c.environment(argv)
	rest, vllm := apiServer(argv)
	c.VLLM = vllm
	if vllm && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		c.Model = rest[0]
	}
	f := parse(rest)
	if err := c.fill(f); err != nil {
		return Command{}, err
	}
	if c.Port == 0 && vllm {
		c.Port = defaultPort
	}
	if vllm && c.ConfigFile == "" {
		c.TensorParallel, c.PipelineParallel = max(c.TensorParallel, 1), max(c.PipelineParallel, 1)
	}
	return c, nil
}

// environment takes "env A=b ..." off the front.
func (c *Command) environment(argv []string) []string {
	if len(argv) == 0 || path.Base(argv[0]) != "env" {
		return argv
	}
	argv = argv[1:]
	c.Env = make(map[string]string)
	for len(argv) > 0 {
		name, value, ok := strings.Cut(argv[0], "=")
		if !ok || name == "" || strings.HasPrefix(name, "-") {
			break
		}
		c.Env[name] = value
		argv = argv[1:]
	}
	return argv
}

// apiServer finds vLLM's API server in a command line that may begin with
// something else (python3 -m, numactl, nice) and returns what follows it.
func apiServer(argv []string) (rest []string, ok bool) {
	for i, a := range argv {
		switch {
		case i > 0 && a == "serve" && path.Base(argv[i-1]) == "vllm",
			strings.HasPrefix(a, "vllm.entrypoints.") && strings.HasSuffix(a, "api_server") && i > 0 && argv[i-1] == "-m",
			i > 0 && path.Base(a) == "api_server.py":
			return argv[i+1:], true
		}
	}
	if len(argv) > 0 {
		argv = argv[1:]
	}
	return argv, false
}

// short names of vLLM's flags, for those that are read.
func short(name string) string {
	return map[string]string{
		"-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dp": "data-parallel-size",
		"-dpl": "data-parallel-size-local", "-dpn": "data-parallel-rank", "-dpr": "data-parallel-start-rank",
		"-dph": "data-parallel-hybrid-lb", "-dpe": "data-parallel-external-lb",
		"-dpm": "data-parallel-multi-port-external-lb",
	}[name]
}

// flags are the values of each flag's last occurrence.
type flags map[string][]string

// parse splits a command line into flags with what follows each. As in vLLM's
// utils/argparse_utils.py, fields that are given one by one (--flag.field value) are merged to JSON,
// and are used instead of the whole flag.
func parse(argv []string) flags {
	out, objects := make(flags), make(map[string]any)
	name := ""
	for i := 0; i < len(argv); i++ {
		a := argv[i]
		flag, value, joined := strings.Cut(a, "=")
		switch {
		case strings.HasPrefix(a, "--") && len(a) > 2:
			// Only the flag's own part: the fields after a dot keep their underscores.
			head, path, dotted := strings.Cut(flag[2:], ".")
			if name = strings.ReplaceAll(head, "_", "-"); dotted {
				if !joined && i+1 < len(argv) && !strings.HasPrefix(argv[i+1], "--") {
					i++
					value = argv[i]
				}
				objects[name] = merged(objects[name], field(path, value))
				name = ""
				continue
			}
		case len(a) > 1 && a[0] == '-' && (a[1] < '0' || a[1] > '9'):
			if name = short(flag); name == "" {
				continue
			}
		case name != "":
			out[name] = append(out[name], a)
			continue
		default:
			continue
		}
		out[name] = nil
		if joined {
			out[name] = []string{value}
			name = ""
		}
	}
	for name, object := range objects {
		b, _ := json.Marshal(object) // never fails: it is what json.Unmarshal has made
		out[name] = []string{string(b)}
	}
	return out
}

// field returns an object with one field, whose name has dots between nested objects. The value is
// JSON or else text; with a plus sign after the name it is a list of text.
func field(name, value string) any {
	var v any
	name, isList := strings.CutSuffix(name, "+")
	if isList {
		var list []any
		for part := range strings.SplitSeq(value, ",") {
			list = append(list, part)
		}
		v = list
	} else if json.Unmarshal([]byte(value), &v) != nil {
		v = value
	}
	for _, key := range slices.Backward(strings.Split(name, ".")) {
		v = map[string]any{key: v}
	}
	return v
}

// merged returns a later value of a field merged into an earlier one, as in vLLM's
// recursive_dict_update: objects are merged, and lists are joined.
func merged(was, v any) any {
	switch was := was.(type) {
	case map[string]any:
		if v, ok := v.(map[string]any); ok {
			for key, field := range v {
				was[key] = merged(was[key], field)
			}
			return was
		}
	case []any:
		if v, ok := v.([]any); ok {
			return append(was, v...)
		}
	}
	return v
}

func (f flags) text(name string) string {
	if v := f[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

func (f flags) has(name string) bool { _, ok := f[name]; return ok }

func (f flags) number(name string, least, most int) (int, error) {
	s := f.text(name)
	if s == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%w: --%s %q of the command is not a number from %d to %d", ErrCommand, name, instance.Printable(s, 40), least, most)
	}
	return n, nil
}

// maxSize bounds what may be a size of a parallel group.
const maxSize = 1 << 16

func (c *Command) fill(f flags) error {
	switch {
	case f.has("headless"):
		return fmt.Errorf("%w: --headless starts no API server; the node with the API has the agent", ErrCommand)
	case f.text("uds") != "":
		return fmt.Errorf("%w: --uds serves on a unix socket, which no proxy can reach; add --port to the command", ErrCommand)
	case f.has("data-parallel-multi-port-external-lb"):
		return fmt.Errorf("%w: --data-parallel-multi-port-external-lb uses one port for each rank, and an agent registers one port: start a command and an agent for each rank (--data-parallel-rank, --port)", ErrCommand)
	}
	c.Host, c.ConfigFile = f.text("host"), f.text("config")
	c.TLS = f.text("ssl-certfile") != ""
	c.APIKey = f.text("api-key")
	c.Served, c.Scheduling = f["served-model-name"], f.text("scheduling-policy")
	c.Model = cmp.Or(f.text("model"), c.Model)
	local, rank, start := 0, 0, 0
	for _, n := range []struct {
		name        string
		least, most int
		into        *int
	}{
		{"port", 1, 65535, &c.Port},
		{"tensor-parallel-size", 1, maxSize, &c.TensorParallel},
		{"pipeline-parallel-size", 1, maxSize, &c.PipelineParallel},
		{"data-parallel-size", 1, maxSize, &c.DataParallel},
		{"data-parallel-size-local", 0, maxSize, &local},
		{"data-parallel-rank", 0, maxSize, &rank},
		{"data-parallel-start-rank", 0, maxSize, &start},
	} {
		v, err := f.number(n.name, n.least, n.most)
		if err != nil {
			return err
		}
		*n.into = v
	}
	if c.Ranks.Total = c.DataParallel; c.DataParallel > 0 {
		c.Ranks.First, c.Ranks.Local = start, c.DataParallel
		if f.has("data-parallel-size-local") {
			c.Ranks.Local = local
		}
	}
	switch {
	case c.DataParallel == 0:
	case f.has("data-parallel-rank"), f.has("data-parallel-external-lb"):
		c.DataParallel = 1 // each rank has an address of its own
		c.Ranks.Local = 1
		if f.has("data-parallel-rank") {
			c.Ranks.First = rank
		}
	case local > 0 && (f.has("data-parallel-hybrid-lb") || f.has("data-parallel-start-rank")):
		c.DataParallel = local
	}
	var err error
	if c.Events, err = config(f, flagEvents, ParseEvents); err != nil {
		return err
	}
	c.Transfer, err = config(f, "kv-transfer-config", ParseTransfer)
	return err
}

// config parses the value of a flag of the command, if it has the flag.
func config[T any](f flags, name string, parse func(string) (T, error)) (parsed T, err error) {
	if f.has(name) {
		if parsed, err = parse(f.text(name)); err != nil {
			return parsed, fmt.Errorf("--%s of the command: %w", name, err)
		}
	}
	return parsed, nil
}

// Masked is the command line with the values of secrets replaced, to be shown.
func Masked(argv []string) []string {
	const mask = "********"
	out := make([]string, len(argv))
	hide := false
	for i, a := range argv {
		flag, _, joined := strings.Cut(a, "=")
		name := strings.ReplaceAll(flag, "_", "-")
		switch {
		case strings.HasPrefix(a, "-"):
			hide = secret(name)
			if out[i] = a; hide && joined {
				out[i], hide = flag+"="+mask, false
			}
		case hide:
			out[i] = mask // a flag may take several keys
		case joined && secret("--"+strings.ToLower(name)):
			out[i] = flag + "=" + mask // env NAME=value
		default:
			out[i] = a
		}
		out[i] = instance.Printable(out[i], 0)
	}
	return out
}

func secret(flag string) bool {
	// Words of the flag, not parts of them: --max-num-batched-tokens is none.
	words := strings.Split(strings.TrimLeft(flag, "-"), "-")
	return slices.ContainsFunc([]string{"key", "token", "password", "secret"}, func(part string) bool { return slices.Contains(words, part) })
}
