package migrate_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/test/harness"
)

// adminKey is the key in the documentation of elastic_proxy.
const adminKey = "YOUR_ADMIN_API_KEY"

// soon limits waits for events that are immediate on a fast machine.
const soon = 60 * time.Second

// site is a machine on which the commands of a document run: each port of the document is replaced by a
// free one.
type site struct {
	t       *testing.T
	fleet   *fleet.Fleet
	vars    map[string]string // shell variables
	ports   map[string]string // port in the document → real port
	etcd    string
	mode    fakevllm.Mode
	model   string
	shared  *fakevllm.Shared
	engines map[string]*fakevllm.Server // by the document's port
	listen  string                      // the document's port of the proxy
	held    map[string]int              // reserved real ports and the sockets that hold them
	starts  int
}

func newSite(t *testing.T, mode fakevllm.Mode, listen string) *site {
	t.Helper()
	s := &site{
		t: t, fleet: harness.NewFleet(t, binDir), ports: map[string]string{}, held: map[string]int{}, mode: mode,
		model: harness.Model, shared: fakevllm.NewShared(), engines: map[string]*fakevllm.Server{}, listen: listen,
	}
	s.vars = map[string]string{"model_name": s.model}
	t.Cleanup(func() {
		for port := range s.held {
			s.release(port)
		}
	})
	s.reserve(listen)
	s.etcd = "127.0.0.1:" + s.hold()
	return s
}

// reserve maps ports of the document to real ones on which nothing listens.
func (s *site) reserve(ports ...string) {
	s.t.Helper()
	for _, p := range ports {
		s.ports[p] = s.hold()
	}
}

// up starts engines of a role at ports of the document.
func (s *site) up(role fakevllm.Role, ports ...string) {
	s.t.Helper()
	for _, p := range ports {
		s.upWith(p, s.engine(role, ""))
	}
}

// upWith starts one engine at a port of the document.
func (s *site) upWith(port string, o fakevllm.Options) {
	s.t.Helper()
	held := s.ports[port]
	s.release(held)
	o.Addr = "127.0.0.1:" + cmp.Or(held, "0")
	e := fakevllm.StartTest(s.t, o)
	s.engines[port] = e
	s.ports[port] = e.Address()[strings.LastIndexByte(e.Address(), ':')+1:]
}

func (s *site) engine(role fakevllm.Role, port string) fakevllm.Options {
	return fakevllm.Options{
		Addr: "127.0.0.1:" + port, Role: role, Mode: s.mode, Models: []string{s.model}, Shared: s.shared, StrictPrefill: true,
	}
}

var fourDigits = regexp.MustCompile(`\b\d{4}\b`)

// text replaces the ports of the document by the real ones.
func (s *site) text(document string) string {
	return fourDigits.ReplaceAllStringFunc(document, func(p string) string {
		if port, ok := s.ports[p]; ok {
			return port
		}
		return p
	})
}

// args returns the arguments after the name of the script in a command.
func (s *site) args(command string) []string {
	s.t.Helper()
	all := words(s.t, s.text(command), s.vars)
	i := slices.IndexFunc(all, func(w string) bool { return strings.HasSuffix(w, ".py") })
	require.GreaterOrEqual(s.t, i, 0, "no script in %q", command)
	return all[i+1:]
}

// start runs the proxy instead of the script, in the given environment.
func (s *site) start(command string, env ...string) *fleet.Process {
	s.t.Helper()
	s.starts++
	s.release(s.ports[s.listen])
	s.release(strings.TrimPrefix(s.etcd, "127.0.0.1:"))
	p, err := s.fleet.Start(s.t.Context(), fleet.Spec{
		Name: fmt.Sprintf("proxy-%d", s.starts), Program: "proxy", Args: s.args(command),
		Env: append([]string{"PD_ETCD_LISTEN=" + s.etcd}, env...),
		Ready: func(ctx context.Context) error {
			d := net.Dialer{}
			c, err := d.DialContext(ctx, "tcp", "127.0.0.1:"+s.ports[s.listen])
			if err == nil {
				c.Close()
			}
			return err
		},
	})
	require.NoError(s.t, err)
	return p
}

func (s *site) stop(p *fleet.Process) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), soon)
	defer cancel()
	require.NoError(s.t, p.Stop(ctx))
}

// refuse runs the proxy with a command line that it must reject.
func (s *site) refuse(command string, says ...string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), soon)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(binDir, "proxy"), s.args(command)...).CombinedOutput()
	var exit *exec.ExitError
	assert.True(s.t, errors.As(err, &exit) && exit.ExitCode() == 2, "%s: %v, want exit code 2\n%s", command, err, out)
	require.True(s.t, testkit.Contains(s.t, string(out), says...))
}

func (s *site) curl(line string) (int, string) {
	s.t.Helper()
	return curl(s.t, s.text(line), s.vars)
}

// answers sends a curl line and compares the response: every field of the printed response must be
// present with that value. Additional fields must be in extra.
func (s *site) answers(line string, status int, printed string, extra ...string) {
	s.t.Helper()
	code, body := s.curl(line)
	var got, want map[string]any
	require.NoError(s.t, json.Unmarshal([]byte(body), &got), "%s\n%d, no JSON: %s", line, code, body)
	require.NoError(s.t, json.Unmarshal([]byte(s.text(printed)), &want), printed)
	assert.Equal(s.t, status, code, "%s\nstatus %d, want %d: %s", line, code, status, body)
	for name, value := range want {
		if list, ok := value.([]any); ok { // ours are sorted by address
			slices.SortFunc(list, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
		assert.True(s.t, reflect.DeepEqual(got[name], value), "%s\n%s is %v, want %v", line, name, got[name], value)
	}
	for name := range got {
		if _, ok := want[name]; !ok && !slices.Contains(extra, name) {
			s.t.Errorf("%s\nthe answer has %q, which the document does not print: %s", line, name, body)
		}
	}
}

// lists are the fields of every response about instances in addition to those of elastic_proxy.
var lists = []string{"current_prefill_instances", "current_decode_instances"}

type status struct {
	PrefillNodes []string           `json:"prefill_nodes"`
	DecodeNodes  []string           `json:"decode_nodes"`
	Instances    []instance.Listing `json:"instances"`
	Limits       map[string]any     `json:"limits"`
}

func (s *site) status() status {
	s.t.Helper()
	var st status
	code, body := s.curl("curl http://127.0.0.1:" + s.listen + "/status")
	if err := json.Unmarshal([]byte(body), &st); err != nil || code != 200 {
		s.t.Fatalf("/status: %d %v: %s", code, err, body)
	}
	return st
}

// addresses returns the real addresses of ports of the document, in the order of responses.
func (s *site) addresses(ports ...string) []string {
	out := make([]string, 0, len(ports))
	for _, p := range ports {
		out = append(out, "127.0.0.1:"+s.ports[p])
	}
	slices.Sort(out)
	return out
}

// await waits until exactly these instances are used.
func (s *site) await(prefill, decode []string) {
	s.t.Helper()
	testkit.Eventually(s.t, soon, func() error {
		st := s.status()
		if !slices.Equal(st.PrefillNodes, s.addresses(prefill...)) || !slices.Equal(st.DecodeNodes, s.addresses(decode...)) {
			return fmt.Errorf("prefill %v, decode %v", st.PrefillNodes, st.DecodeNodes)
		}
		return nil
	})
}

// serves sends a curl line of a completion and checks the whole response.
func (s *site) serves(line, prompt string, tokens int) {
	s.t.Helper()
	code, body := s.curl(line)
	var answer struct {
		Object  string
		Choices []struct {
			Text    string
			Message struct{ Content string }
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || code != 200 || len(answer.Choices) != 1 {
		s.t.Fatalf("%s\n%d %v: %s", line, code, err, body)
	}
	got, want := answer.Choices[0].Text, fakevllm.ExpectedText(prompt, fakevllm.Sampling{MaxTokens: tokens}).Text
	if answer.Object == "chat.completion" {
		got = answer.Choices[0].Message.Content
		want = fakevllm.ExpectedChat([]fakevllm.Message{{Role: "user", Content: prompt}}, fakevllm.Sampling{MaxTokens: tokens}).Text
	}
	assert.Equal(s.t, want, got, "%s\nanswer", line)
}

// strict fails the test if an engine received an invalid request. If decoded is set, the decode engines
// must not have computed a prompt themselves.
func (s *site) strict(decoded bool) {
	s.t.Helper()
	var local int64
	for port, e := range s.engines {
		assert.Len(s.t, append(e.Violations(), e.BadParams()...), 0, "engine of port %s", port)
		local += e.Counters().LocalPrefills
	}
	assert.False(s.t, decoded && local > 0, "%d prompts were computed twice", local)
}

// served returns the number of requests that the engines received.
func (s *site) served(ports ...string) (n int64) {
	for _, p := range ports {
		n += s.engines[p].Counters().Requests
	}
	return n
}

// record waits until etcd has a record of an instance, and returns it: a proxy uses the instances of its
// command line before it has written them.
func (s *site) record(role instance.Role, port string) instance.Record {
	s.t.Helper()
	cli := etcdtest.Client(s.t, s.etcd)
	l, err := schema.NewLayout("/pd")
	require.NoError(s.t, err)
	k := instance.Key{Role: role, Address: "127.0.0.1:" + s.ports[port]}
	var raw []store.RawKey
	testkit.Eventually(s.t, soon, func() error {
		raw, err = store.New(cli, l, "test").Reader.Get(s.t.Context(), k)
		if err == nil && len(raw) != 1 {
			err = fmt.Errorf("%s: %d keys", k, len(raw))
		}
		return err
	})
	assert.EqualValues(s.t, 0, raw[0].Lease, "%s has a lease", k)
	rec, _, err := schema.DecodeRecord(k, raw[0].Value)
	require.NoError(s.t, err)
	return rec
}

// hold finds a free port and reserves it with a bound socket that does not listen: parallel tests choose
// other ports, and connections are refused as if the port were unused.
func (s *site) hold() string {
	s.t.Helper()
	for range 50 {
		free, err := fleet.FreePorts(1)
		require.NoError(s.t, err)
		syscall.ForkLock.RLock() // a process started between the two calls would keep the socket
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
		if err == nil {
			syscall.CloseOnExec(fd)
		}
		syscall.ForkLock.RUnlock()
		require.NoError(s.t, err)
		if err := syscall.Bind(fd, &syscall.SockaddrInet4{Port: free[0], Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			_ = syscall.Close(fd) // another process was faster
			continue
		}
		port := strconv.Itoa(free[0])
		s.held[port] = fd
		return port
	}
	s.t.Fatal("no port is free")
	return ""
}

// release frees a held port so that its user can listen on it.
func (s *site) release(port string) {
	if fd, ok := s.held[port]; ok {
		delete(s.held, port)
		syscall.ForkLock.RLock() // a process that is being forked has a copy until its exec
		err := syscall.Close(fd)
		syscall.ForkLock.RUnlock()
		assert.NoError(s.t, err, "release port %s", port)
	}
}
