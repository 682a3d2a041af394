package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/test/harness"
)

// topRig is a fleet of two proxies, one of them with --admin-listen, with an instance of each role.
type topRig struct {
	*doctorRig
	proxies         []*fleet.Proxy
	prefill, decode string
}

func newTopRig(t *testing.T) *topRig {
	w := &topRig{doctorRig: newDoctorRig(t, etcdtest.Start(t).Endpoint())}
	for i, args := range [][]string{nil, {"--admin-listen", testkit.FreePort(t)}} {
		p, err := w.f.StartProxy(t.Context(), fleet.ProxySpec{
			Name: fmt.Sprintf("proxy-%d", i), EtcdEndpoints: []string{w.etcd}, Args: append(args, "--connector", "nixl", "--scrape-interval", "200ms"),
		})
		require.NoError(t, err)
		w.proxies = append(w.proxies, p)
	}
	w.prefill = w.engine(fakevllm.Options{Role: fakevllm.RolePrefill, CacheBlocks: 10000, PromptTokensDetails: true}).Address()
	w.decode = w.engine(fakevllm.Options{Role: fakevllm.RoleDecode, CacheBlocks: 10000, ITL: 5 * time.Millisecond}).Address()
	for role, address := range map[instance.Role]string{instance.Prefill: w.prefill, instance.Decode: w.decode} {
		code, out := w.run(fmt.Sprintf("pdctl add %s %s", role, address))
		require.Equal(t, 0, code, out)
	}
	now, err := w.cli.Get(t.Context(), "/pd/meta/schema")
	require.NoError(t, err)
	if code, out := w.run(fmt.Sprintf("pdctl wait --revision %d", now.Header.Revision)); code != 0 {
		t.Fatal(out)
	}
	for _, p := range w.proxies {
		for range 3 {
			w.send(p)
		}
	}
	return w
}

// send sends a chat through a proxy.
func (w *topRig) send(p *fleet.Proxy) {
	w.t.Helper()
	harness.Post(w.t, p.URL()+"/v1/chat/completions", fmt.Sprintf(`{"model":%q,"stream":true,"max_tokens":5,"messages":[{"role":"user","content":%q}]}`, modelName, strings.Repeat("the sea ", 100)))
}

// topFrame has the parts of top -o json that the tests read.
type topFrame struct {
	Instances []struct {
		Address  string
		Serves   bool
		InFlight *int64   `json:"in_flight"`
		Waiting  *float64 `json:"waiting_tokens"`
		Usage    *float64 `json:"kv_cache_usage"`
		HitRate  *float64 `json:"cache_hit_rate"`
		Requests *float64 `json:"requests"`
		TTFT     *float64 `json:"ttft_p50_seconds"`
		PerToken *float64 `json:"time_per_token_p50_seconds"`
	}
	Proxies []struct{ Address, Source, Error string }
}

func (w *topRig) frame() (f topFrame) {
	w.t.Helper()
	code, out := w.run("pdctl top -o json")
	if err := json.Unmarshal([]byte(out), &f); code != 0 || err != nil {
		w.t.Fatalf("exit %d: %v\n%s", code, err, out)
	}
	return f
}

// top shows the figures of both proxies and, for an unreachable third one, the load in its digest.
func TestTop(t *testing.T) {
	t.Parallel()
	needsCurl(t)
	w := newTopRig(t)
	for key, value := range map[string]string{
		"/pd/proxies/far": `{"v":1,"id":"far","address":"127.0.0.1:1","applied":1}`,
		"/pd/load/far":    fmt.Sprintf(`{"v":1,"applied":1,"load":{"decode/%s":{"in_flight":7,"waiting_tokens":5,"held_tokens":1}}}`, w.decode),
	} {
		if _, err := w.cli.Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, patience, func() error {
		f := w.frame()
		sources := map[string]string{}
		for _, p := range f.Proxies {
			sources[p.Address] = p.Source + p.Error
		}
		if len(f.Instances) != 2 || sources[w.proxies[0].Address] != "metrics" || sources[w.proxies[1].Address] != "metrics" ||
			!strings.HasPrefix(sources["127.0.0.1:1"], "digesthttp://127.0.0.1:1: ") {
			return fmt.Errorf("%+v", f)
		}
		p, d := f.Instances[0], f.Instances[1]
		if p.Address != w.prefill || d.Address != w.decode || !p.Serves || !d.Serves || p.InFlight == nil || *p.InFlight != 0 || d.InFlight == nil || *d.InFlight != 7 || *d.Waiting != 5 {
			return fmt.Errorf("load: %+v", f)
		}
		// 5 of the 6 prompts were in the cache, except for their last block.
		if p.HitRate == nil || *p.HitRate < .7 || *p.HitRate > .84 || p.TTFT == nil || p.PerToken != nil || p.Usage == nil || d.HitRate != nil || d.PerToken == nil || d.Usage == nil {
			return fmt.Errorf("figures: %+v", f)
		}
		if p.Requests == nil || *p.Requests != 6 || d.Requests == nil || *d.Requests != 6 {
			return fmt.Errorf("requests: %+v", f)
		}
		return nil
	})
	if _, out := w.run("curl -s " + w.proxies[0].URL() + "/status"); !strings.Contains(out, `"pace":{"samples":`) {
		t.Errorf("no time of the requests:\n%s", out)
	}
	code, out := w.run("pdctl top --once --sort-by kv --selector role=decode")
	if code != 0 || !strings.Contains(out, "prefill 1/1 serving  decode 1/1 serving") || strings.Contains(out, w.prefill) || !strings.Contains(out, "since the proxies started") {
		t.Errorf("exit %d\n%s", code, out)
	}
	for line, want := range map[string]string{
		"pdctl top --once --sort-by size": "use one of address, state, in-flight", "pdctl top --once --interval 1ms": "from 500ms to 1m", "pdctl top": "needs a terminal",
	} {
		code, out := w.run(line)
		assert.True(t, code == 2 && strings.Contains(out, want), "%s: exit %d\n%s", line, code, out)
	}
}

// In a terminal, top shows the fleet, and drains an instance after a confirmation.
func TestTopInTerminal(t *testing.T) {
	t.Parallel()
	w := newTopRig(t)
	user, program := openTerminal(t)
	cmd := exec.CommandContext(t.Context(), filepath.Join(binDir, "pdctl"), "top", "--etcd-endpoints", w.etcd, "--interval", "500ms", "--selector", "role=decode")
	cmd.Env = append(slices.Clip(w.s.env), "TERM=xterm-256color")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	_ = program.Close()
	c := &typed{cmd: cmd, stop: func() {}}
	read := make(chan struct{})
	go func() { defer close(read); _, _ = io.Copy(&c.out, user) }() // ends with the program
	press := func(keys string) {
		t.Helper()
		if _, err := io.WriteString(user, keys); err != nil {
			t.Fatal(err)
		}
	}
	c.sees(t, w.decode)
	press("d")
	c.sees(t, "No decode instance remains")
	press("\r")
	c.sees(t, `type "yes" before the reason`)
	press("yes new disks\r")
	c.sees(t, "done, revision")
	press("q")
	if code := c.end(); code != 0 {
		t.Errorf("exit %d\n%q", code, c.out.String())
	}
	<-read
	code, out := w.run("pdctl history decode " + w.decode)
	assert.True(t, code == 0 && strings.Contains(out, "new disks"), "exit %d\n%s", code, out)
}

// openTerminal opens a pseudo-terminal, and returns its user's end and its program's end.
func openTerminal(t *testing.T) (user, program *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals: %v", err)
	}
	t.Cleanup(func() { _ = user.Close() })
	fd := int(user.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 140})
	}
	if err == nil {
		program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	require.NoError(t, err)
	return user, program
}
