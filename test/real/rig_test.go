package real_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

const (
	// model is the name of the model; adapted is the model with the adapter.
	model   = "tiny"
	adapted = "adapted"
	// patience limits waits. An engine takes seconds to start, and minutes on a busy machine.
	patience = 10 * time.Minute
)

// rig is a fleet of real engines with our proxy.
type rig struct {
	t     *testing.T
	fleet *fleet.Fleet
	proxy *fleet.Proxy
	http  *http.Client
	more  []string // additional arguments of every engine of this rig
	env   []string // additional environment variables
	// weights is the directory of the engines' model, "" for the lab's.
	weights string
	// adminKey is the admin key of the proxy that start starts, "" for none.
	adminKey string
	// proxyArgs are additional arguments of that proxy.
	proxyArgs []string
	// class is the connector class of the engines, and dialect its name in our settings.
	class, dialect string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	f, err := fleet.New(fleet.Options{BinDir: binDir, Dir: t.TempDir(), ReadyTimeout: patience})
	require.NoError(t, err)
	r := &rig{t: t, fleet: f, class: "NixlConnector", dialect: "nixl", http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(f.Dir(), "logs", "*.log")) // the pattern is valid
			for _, path := range logs {
				t.Logf("%s:\n%s", filepath.Base(path), tail(path, 40))
			}
		}
		if err := f.Abandon(); err != nil {
			t.Errorf("end of the fleet: %v", err)
		}
	})
	return r
}

// tail returns the last n lines of a file.
func tail(path string, lines int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// engine is a vLLM server that the zygote has forked.
type engine struct {
	*fleet.Process
	name, address string
	role          instance.Role
	agent         *fleet.Process
}

func (e *engine) url() string { return "http://" + e.address }

// command returns the vllm serve command line of every engine of the lab.
func command(port int) []string {
	return []string{
		"serve", filepath.Join(lab.dir, "model"), "--served-model-name", model, "--host", "127.0.0.1", "--port", strconv.Itoa(port),
		"--dtype", "float32", "--enforce-eager", "--max-model-len", "2048", "--block-size", "32",
		"--kv-cache-memory-bytes", "134217728", "--max-num-seqs", "32", "--enable-prompt-tokens-details",
		"--enable-scale-out", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
		"--enable-lora", "--lora-modules", adapted + "=" + filepath.Join(lab.dir, "adapter"),
	}
}

// environment returns the environment of an engine that the zygote forks.
func environment(more ...string) []string {
	return slices.Concat(lab.env, []string{"PD_TEST_LAB_ZYGOTE=" + lab.socket, "VLLM_ENABLE_RESPONSES_API_STORE=1"}, more)
}

// transfer returns the --kv-transfer-config argument of an engine.
func transfer(role instance.Role) string { return transferBy("NixlConnector", role) }

func transferBy(class string, role instance.Role) string {
	kv := map[instance.Role]string{instance.Prefill: "kv_producer", instance.Decode: "kv_consumer", instance.Both: "kv_both"}[role]
	return `--kv-transfer-config={"kv_connector":"` + class + `","kv_role":"` + kv + `","kv_buffer_device":"cpu"}`
}

// launch starts an engine; without a role it is a single engine without a connector.
func (r *rig) launch(name string, role instance.Role) (*engine, error) {
	ports, err := fleet.FreePorts(2)
	if err != nil {
		return nil, err
	}
	args, env := append(command(ports[0]), r.more...), environment(r.env...)
	if r.weights != "" {
		args[1] = r.weights
	}
	if role != "" {
		args = append(args, transferBy(r.class, role))
		env = append(env, "VLLM_NIXL_SIDE_CHANNEL_PORT="+strconv.Itoa(ports[1]))
	}
	e := &engine{name: name, address: "127.0.0.1:" + strconv.Itoa(ports[0]), role: role}
	began := time.Now()
	e.Process, err = r.fleet.Start(r.t.Context(), fleet.Spec{
		Name: name, Program: absolute("lab/bin/vllm"), Args: args, Env: env,
		Ready: func(ctx context.Context) error { return r.get(ctx, e.url()+"/health", nil) },
	})
	if err != nil {
		return nil, err
	}
	logf("%s serves, after %s", name, since(began))
	return e, lowerPriority(e.Process)
}

// startAgent starts the agent of an engine.
func (r *rig) startAgent(e *engine) {
	r.t.Helper()
	var err error
	e.agent, err = r.fleet.Start(r.t.Context(), fleet.Spec{
		Name: e.name + "-agent", Program: "agent",
		Args: []string{
			"--role", string(e.role), "--address", e.address, "--connector", r.dialect, "--etcd-endpoints", strings.Join(r.proxy.Etcd, ","),
		},
	})
	require.NoError(r.t, err)
}

// adminKey is the admin key of proxies that return trace headers.
const adminKey = "real-admin-key"

// start starts a proxy with an embedded etcd, and NIXL engines with agents: one prefill and the given
// number of decode engines. It waits until the proxy uses them.
func (r *rig) start(decodes int) (list []*engine) {
	r.t.Helper()
	var err error
	r.proxy, err = r.fleet.StartProxy(r.t.Context(), fleet.ProxySpec{Name: "proxy", AdminKey: r.adminKey, Args: r.proxyArgs})
	require.NoError(r.t, err)
	list = make([]*engine, 1+decodes)
	errs := make([]error, len(list))
	var group sync.WaitGroup
	for i := range list {
		name, role := "decode-"+strconv.Itoa(i), instance.Decode
		if i == 0 {
			name, role = "prefill", instance.Prefill
		}
		group.Go(func() { list[i], errs[i] = r.launch(name, role) })
	}
	group.Wait()
	for i, err := range errs {
		require.NoError(r.t, err)
		r.startAgent(list[i])
	}
	require.NoError(r.t, r.proxy.WaitFor(r.t.Context(), 1, decodes))
	return list
}

// get decodes the JSON response of a URL, which must answer with 200, into a value unless it is nil.
func (r *rig) get(ctx context.Context, url string, into any) error {
	raw, err := r.fetch(ctx, url)
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

func (r *rig) fetch(ctx context.Context, url string) ([]byte, error) {
	resp, text, err := harness.Send(ctx, http.MethodGet, url, "")
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", url, resp.Status, text)
	}
	return []byte(text), err
}

// metric returns the sum of the samples of a metric that have the given labels.
func (r *rig) metric(e *engine, name, labels string) (sum float64) {
	r.t.Helper()
	raw, err := r.fetch(r.t.Context(), e.url()+"/metrics")
	require.NoError(r.t, err)
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, name+"{") || !strings.Contains(line, labels) {
			continue
		}
		fields := strings.Fields(line)
		v, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			r.t.Fatalf("%q: %v", line, err)
		}
		sum += v
	}
	return sum
}

// ask sends a completion to the proxy and returns the response.
func (r *rig) ask(prompt string, tokens int) (status int, body []byte, err error) {
	raw, err := json.Marshal(map[string]any{"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true})
	if err != nil {
		return 0, nil, err
	}
	return r.call(http.MethodPost, "/v1/completions", string(raw))
}

// call sends a request to the proxy.
func (r *rig) call(method, path, body string) (status int, answer []byte, err error) {
	return r.callAt(r.proxy.URL(), method, path, body)
}

// callAt sends a request to a server.
func (r *rig) callAt(url, method, path, body string) (status int, answer []byte, err error) {
	resp, text, err := harness.Send(r.t.Context(), method, url+path, body)
	if err != nil {
		return 0, nil, err
	}
	return resp.StatusCode, []byte(text), nil
}

// text returns the answer to a prompt. Any status other than 200 fails the test.
func (r *rig) text(prompt string, tokens int) string {
	r.t.Helper()
	status, body, err := r.ask(prompt, tokens)
	if err != nil || status != http.StatusOK {
		r.t.Fatalf("status %d, %v: %s", status, err, body)
	}
	var a struct{ Choices []struct{ Text string } }
	if err := json.Unmarshal(body, &a); err != nil || len(a.Choices) != 1 {
		r.t.Fatalf("%v: %s", err, body)
	}
	return a.Choices[0].Text
}

// promptTokens generates one token and returns the length of the prompt in tokens.
func (r *rig) promptTokens(prompt string) int {
	r.t.Helper()
	status, body, err := r.ask(prompt, 1)
	if err != nil || status != http.StatusOK {
		r.t.Fatalf("status %d, %v: %s", status, err, body)
	}
	var a struct {
		Usage struct {
			PromptTokens int `json:"prompt_tokens"`
		}
	}
	if err := json.Unmarshal(body, &a); err != nil {
		r.t.Fatalf("%v: %s", err, body)
	}
	return a.Usage.PromptTokens
}

// awaitDecodes waits until the proxy uses n decode instances.
func (r *rig) awaitDecodes(n int) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		st, err := r.proxy.Status(r.t.Context())
		if err != nil {
			return err
		}
		if len(st.DecodeNodes) != n {
			return fmt.Errorf("it serves decode instances %q, want %d", st.DecodeNodes, n)
		}
		return nil
	})
}

// members returns the processes of an engine: its whole process group.
func members(p *fleet.Process) ([]int, error) {
	all, err := processes()
	return inGroup(all, p.PID()), err
}

// processes returns all processes of this machine.
func processes() (out []int, err error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			out = append(out, pid)
		}
	}
	return out, err
}

func inGroup(list []int, group int) (out []int) {
	for _, pid := range list {
		if g, err := syscall.Getpgid(pid); err == nil && g == group {
			out = append(out, pid)
		}
	}
	return out
}

// worker returns the process of an engine that computes.
func worker(p *fleet.Process) (int, error) {
	list, err := members(p)
	if err != nil {
		return 0, err
	}
	return workerOf(list)
}

// workerOf returns the worker among the processes of an engine: the largest grandchild of the API server.
func workerOf(list []int) (int, error) {
	parent := map[int]int{}
	for _, pid := range list {
		parent[pid], _ = number(pid, "status", "PPid:") // 0 if it has exited
	}
	found, most := 0, 0
	for _, pid := range list {
		core := parent[pid]
		if !slices.Contains(list, core) || !slices.Contains(list, parent[core]) {
			continue
		}
		if size, _ := number(pid, "status", "VmRSS:"); size > most {
			found, most = pid, size
		}
	}
	if found == 0 {
		return 0, fmt.Errorf("no worker among %v", list)
	}
	return found, nil
}

// number reads a number from a line of a file in /proc/pid.
func number(pid int, file, name string) (int, error) {
	return numberIn(fmt.Sprintf("/proc/%d/%s", pid, file), name)
}

func numberIn(path, name string) (int, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), name); ok {
			return strconv.Atoi(strings.Fields(rest)[0])
		}
	}
	return 0, fmt.Errorf("no %s in %s", name, path)
}

// lowerPriority sets the lowest priority for threads that never sleep. NIXL has one in each engine, which
// polls and uses a whole core. PD_TEST_REAL_SPIN=1 disables this; the polling threads then compete with all
// others.
func lowerPriority(p *fleet.Process) error {
	list, err := members(p)
	if err != nil {
		return err
	}
	return lowerPriorities(list)
}

func lowerPriorities(list []int) error {
	if os.Getenv("PD_TEST_REAL_SPIN") == "1" {
		return nil
	}
	for _, pid := range list {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		if err != nil {
			return err
		}
		for _, task := range tasks {
			if n, err := numberIn(filepath.Join(task, "status"), "voluntary_ctxt_switches:"); err != nil || n != 0 {
				continue // it sleeps or has exited
			}
			if tid, err := strconv.Atoi(filepath.Base(task)); err == nil {
				_ = syscall.Setpriority(syscall.PRIO_PROCESS, tid, 19) // it may have exited
			}
		}
	}
	return nil
}
