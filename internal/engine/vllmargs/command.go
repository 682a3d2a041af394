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

// Command has the facts that a command line states about the engine it starts. Facts that it does not state
// are empty or zero.
type Command struct {
	VLLM   bool              // it is recognized as vLLM's API server, so that vLLM's defaults apply
	Env    map[string]string // variables set before it: env NAME=value ...
	Host   string            // as written; "" for vLLM's default, all addresses
	Port   int               // 8000 for vLLM without one; 0 if unknown
	TLS    bool
	Model  string   // the path or name of the weights
	Served []string // names that the API shows instead of Model
	APIKey string   // the first key

	// TensorParallel and PipelineParallel are 1 for vLLM without a size; 0 if unknown.
	TensorParallel   int
	PipelineParallel int
	// DataParallel is the number of ranks at this one address.
	DataParallel int
	Ranks        Ranks

	Scheduling string // --scheduling-policy, "" for vLLM's default, fcfs

	ConfigFile string // --config: a file that is not read here
	Transfer   Transfer
	Events     Events
}

// Ranks are the data-parallel ranks of a group, and those of them that a command starts. It is zero for a
// command without settings of data parallelism.
type Ranks struct {
	Total int // number of ranks in the group, on all machines
	First int // first rank that this command starts
	Local int // number of ranks that it starts; 0 if it only serves the API of a group
}

// Elsewhere reports whether only other commands start ranks of the group.
func (r Ranks) Elsewhere() bool { return r.Total > 0 && r.Local == 0 }

// defaultPort is the default port of vLLM's API server.
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

// environment removes "env A=b ..." from the beginning of a command line, and stores the variables in c.Env.
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

// apiServer finds vLLM's API server in a command line that may begin with other programs (python3 -m,
// numactl, nice), and returns the arguments after it.
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

// short returns the long name of one of vLLM's short flags, if that flag is read.
func short(name string) string {
	return map[string]string{
		"-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dp": "data-parallel-size",
		"-dpl": "data-parallel-size-local", "-dpn": "data-parallel-rank", "-dpr": "data-parallel-start-rank",
		"-dph": "data-parallel-hybrid-lb", "-dpe": "data-parallel-external-lb",
		"-dpm": "data-parallel-multi-port-external-lb",
	}[name]
}

// flags has the values of the last occurrence of each flag, by name.
type flags map[string][]string

// parse splits a command line into flags and their values. As in vLLM's utils/argparse_utils.py, fields that
// are set one by one (--flag.field value) are merged to JSON, which replaces the value of the whole flag.
func parse(argv []string) flags {
	out, objects := make(flags), make(map[string]any)
	name := ""
	for i := 0; i < len(argv); i++ {
		a := argv[i]
		flag, value, joined := strings.Cut(a, "=")
		switch {
		case strings.HasPrefix(a, "--") && len(a) > 2:
			// Only in the name of the flag: the fields after a dot keep their underscores.
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
		b, _ := json.Marshal(object) // cannot fail: it has only values of JSON
		out[name] = []string{string(b)}
	}
	return out
}

// field returns an object with one field; dots in its name separate nested objects. The value is JSON if it
// can be parsed, else text; if the name ends with a plus sign, it is a list of text.
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

// merged merges a later value of a field into an earlier one, as vLLM's recursive_dict_update does: objects
// are merged, and lists are joined.
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

// maxSize bounds the size of a parallel group.
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
		c.DataParallel = 1 // each rank has a separate address
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

// Masked returns the command line with the values of secrets replaced, for display.
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
	// Compare whole words: --max-num-batched-tokens is not a secret.
	words := strings.Split(strings.TrimLeft(flag, "-"), "-")
	return slices.ContainsFunc([]string{"key", "token", "password", "secret"}, func(part string) bool { return slices.Contains(words, part) })
}
