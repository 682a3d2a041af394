package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/test/harness"
)

// topology is the fleet of docker-compose.yml, run by cmd/fleet.
type topology struct {
	t   *testing.T
	dir string
}

type topologyRow struct {
	Service, State, Health string
	PID                    int
	Listens                []string
}

func (f *topology) up() {
	f.t.Helper()
	runProgram(f.t, "fleet", "up", "--dir", f.dir, "--bin", binDir, "--file", filepath.Join("..", "..", "docker-compose.yml"), "--free-ports")
}

// status is what the program's own status says; it must have run.
func (f *topology) status() map[string]topologyRow {
	f.t.Helper()
	var page struct{ Processes []topologyRow }
	text := runProgram(f.t, "fleet", "status", "--dir", f.dir, "-o", "json")
	if err := json.Unmarshal([]byte(text), &page); err != nil {
		f.t.Fatal(err)
	}
	out := map[string]topologyRow{}
	for _, r := range page.Processes {
		out[r.Service] = r
	}
	return out
}

// down ends the fleet when the test has ended.
func (f *topology) down() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(binDir, "fleet"), "down", "--dir", f.dir, "--grace", "0s").CombinedOutput()
	if err != nil {
		f.t.Errorf("fleet down: %v: %s", err, out)
	}
}

func (f *topology) kill(service string) {
	f.t.Helper()
	if err := syscall.Kill(f.status()[service].PID, syscall.SIGKILL); err != nil {
		f.t.Fatalf("kill %s: %v", service, err)
	}
}

// The topology of docker-compose.yml, as processes: each etcd member, each proxy
// and each agent is killed under load and brought back. Clients that go to the
// other proxy when a connection is refused notice nothing; of a killed proxy
// they notice the answers that were on their way through it.
func TestComposeTopology(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	f := &topology{t: t, dir: t.TempDir()}
	t.Cleanup(f.down)
	f.up()
	before := f.status()
	var names []string
	for name := range before {
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{
		"decode-1", "decode-1-agent", "decode-2", "decode-2-agent", "etcd-1", "etcd-2", "etcd-3",
		"prefill-1", "prefill-1-agent", "prefill-2", "prefill-2-agent", "proxy-1", "proxy-2",
	}
	if !slices.Equal(names, want) {
		t.Fatalf("these run: %v, want %v", names, want)
	}
	urls := []string{"http://" + before["proxy-1"].Listens[0], "http://" + before["proxy-2"].Listens[0]}
	for _, url := range urls {
		f.serving(url, 0)
	}
	const clients = 12
	l := harness.StartRetryingLoad(t, "demo/simulated", clients, 0, urls...)
	l.Served(2 * clients)
	for _, name := range want {
		kind := strings.TrimRight(name, "-0123456789")
		switch {
		case kind == "etcd", kind == "proxy", strings.HasSuffix(name, "-agent"):
		default:
			continue // engines: see TestChaos
		}
		refused, lost, broken := l.Refused(), l.Cut(), l.Broken()
		f.kill(name)
		l.Served(2 * clients)
		if strings.HasSuffix(name, "-1-agent") { // long enough once for each role: its lease ends
			for _, url := range urls {
				f.serving(url, 1)
			}
			l.Served(2 * clients)
		}
		f.up()
		l.Served(clients)
		refused, lost, broken = l.Refused()-refused, l.Cut()-lost, l.Broken()-broken
		t.Logf("killed %s: %d connections refused, %d lost, %d streams broken", name, refused, lost, broken)
		if kind != "proxy" && refused+lost+broken > 0 {
			t.Errorf("the death of %s was noticed", name)
		}
		if kind == "proxy" && lost+broken > clients {
			t.Errorf("the death of %s took more than what went through it", name)
		}
		if failures := l.Failures(); len(failures) > 0 {
			t.Fatalf("after the death of %s: %v", name, failures)
		}
	}
	l.Finish()
	after := f.status()
	for name, was := range before {
		now := after[name]
		killed := strings.HasPrefix(name, "etcd") || strings.HasPrefix(name, "proxy") || strings.HasSuffix(name, "-agent")
		if (now.PID == was.PID) == killed || !slices.Equal(now.Listens, was.Listens) {
			t.Errorf("%s was %+v, is %+v", name, was, now)
		}
	}
}

// serving waits until a proxy serves two instances of each role, so many of all
// of them as orphans.
func (f *topology) serving(url string, orphans int) {
	f.t.Helper()
	testkit.Eventually(f.t, 2*time.Minute, func() error {
		var page struct {
			PrefillNodes []string `json:"prefill_nodes"`
			DecodeNodes  []string `json:"decode_nodes"`
			Etcd         struct{ Orphans int }
		}
		if err := json.Unmarshal(get(f.t, url+"/status"), &page); err != nil {
			return err
		}
		if len(page.PrefillNodes) != 2 || len(page.DecodeNodes) != 2 || page.Etcd.Orphans != orphans {
			return fmt.Errorf("%s: %+v", url, page)
		}
		return nil
	})
}
