package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/loadgen"
)

const (
	model = "demo/simulated"
	// The pace of a small model, so that one sees the tokens arrive.
	ttft = 150 * time.Millisecond
	itl  = 25 * time.Millisecond
	// leaseTTL is the shortest an agent takes: the tour waits for a lease to end.
	leaseTTL = 5 * time.Second
	// bridgeTTL is that of a proxy's registrations for engines that ping.
	bridgeTTL = 15 * time.Second
)

// tour is the state of a demo.
type tour struct {
	out    io.Writer
	bin    string
	fleet  *fleet.Fleet
	key    string // admin key of this demo's proxy
	kv     string // connector of the engines
	pingTo string // where MoRI-IO engines register themselves; "" for all others
	client *loadgen.Client
	proxy  *fleet.Proxy
	nodes  []*fleet.Node
	killed time.Time
	step   int
}

func demo(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	fo := fleet.Options{BinDir: o.bin}
	if o.verbose {
		fo.Output = stderr
	}
	f, err := fleet.New(fo)
	if err != nil {
		return err
	}
	// The fleet is a toy and its data temporary: no orderly end is needed.
	defer func() { err = errors.Join(err, f.Abandon()) }()

	t := &tour{out: stdout, bin: o.bin, fleet: f, key: rand.Text(), kv: o.connector}
	t.client = loadgen.NewClient(8, http.Header{"X-Pd-Trace": {"1"}, "X-Api-Key": {t.key}})
	defer t.client.Close()

	t.say("pdmesh demo. Everything runs on this machine and listens on 127.0.0.1 only.")
	for _, step := range []func(context.Context) error{t.startProxy, t.startNodes, t.ask, t.killOne, t.leaseEnds} {
		if err := step(ctx); err != nil {
			if ctx.Err() != nil {
				t.say("\nInterrupted; everything is stopped.")
				return nil
			}
			return fmt.Errorf("step %d failed: %w", t.step, err)
		}
	}
	if o.once {
		t.say("\nEvery step went as it should. Everything is stopped; nothing is left behind.")
		return nil
	}
	return t.stay(ctx)
}

func (t *tour) say(format string, args ...any) { fmt.Fprintf(t.out, format+"\n", args...) }

func (t *tour) title(format string, args ...any) {
	t.step++
	t.say("\n%d. %s", t.step, fmt.Sprintf(format, args...))
}

func (t *tour) startProxy(ctx context.Context) (err error) {
	t.title("Start a proxy. It brings its own etcd, where the fleet will be written down.")
	args := []string{"--connector", t.kv}
	if strings.HasPrefix(t.kv, connector.MoRIIO) {
		ports, err := fleet.FreePorts(1)
		if err != nil {
			return err
		}
		t.pingTo = "tcp://127.0.0.1:" + strconv.Itoa(ports[0])
		args = append(args, "--zmq-register", t.pingTo)
	}
	t.proxy, err = t.fleet.StartProxy(ctx, fleet.ProxySpec{Name: "proxy", AdminKey: t.key, Args: args})
	if err != nil {
		return err
	}
	t.say("   proxy      %s", t.proxy.URL())
	t.say("   etcd       %s", t.proxy.Etcd[0])
	return nil
}

func (t *tour) startNodes(ctx context.Context) error {
	if t.pingTo != "" {
		t.title("Start two prefill and two decode engines (simulated: no GPU) with the MoRI-IO connector.\n" +
			"   They ping the proxy by ZeroMQ, which asks each whether it answers, then registers it in etcd.")
	} else {
		t.title("Start two prefill and two decode engines (simulated: no GPU), each with an agent\n" +
			"   beside it. An agent checks that its engine answers, then registers it in etcd.")
	}
	begin := time.Now()
	for _, role := range instance.Roles() {
		for i := range 2 {
			spec := fleet.NodeSpec{
				Name: fmt.Sprintf("%s-%d", role, i+1), Role: role, Connector: t.kv, Model: model,
				ITL: itl, Etcd: t.proxy.Etcd, TTL: leaseTTL,
			}
			if t.pingTo != "" {
				spec.Etcd, spec.EngineArgs = nil, []string{"--ping-to", t.pingTo}
			}
			if role == instance.Prefill {
				spec.TTFT = ttft // a decode engine gets the prompt computed
			}
			n, err := t.fleet.StartNode(ctx, spec)
			if err != nil {
				return err
			}
			t.nodes = append(t.nodes, n)
			t.say("   %-10s %s", n.Spec.Name, n.Address)
		}
	}
	if err := t.proxy.WaitFor(ctx, 2, 2); err != nil {
		return err
	}
	t.say("   Nobody told the proxy about them. It watched etcd, and knew all four %.1f s after\n   the first was started.", time.Since(begin).Seconds())
	return nil
}

func (t *tour) ask(ctx context.Context) error {
	t.title("Ask something. The answer is streamed; the simulated model has made-up words, but\n" +
		"   says the same to the same question, so every answer is checked to the letter.")
	const question = "What happens when an engine dies?"
	t.say("   > %s\n", question)
	p := &printer{w: t.out, indent: "   < "}
	r, err := t.chat(ctx, question, 40, p.Write)
	p.end()
	if err != nil {
		return err
	}
	t.say("   prompt computed by   %s", t.name(instance.Prefill, r))
	t.say("   answer written by    %s", t.name(instance.Decode, r))
	t.say("   first token after    %d ms; 40 tokens, all as expected", r.TTFT.Milliseconds())
	return nil
}

// killOne kills the decode engine and sends requests at once, some of which
// will be meant for it.
func (t *tour) killOne(ctx context.Context) error {
	victim := t.nodes[len(t.nodes)-1]
	t.title("Kill %s and what is beside it, as a power cut would (kill -9), and ask on at once.", victim.Spec.Name)
	if err := victim.Kill(); err != nil {
		return err
	}
	t.killed = time.Now()
	retried := 0
	const requests = 6
	for i := range requests {
		r, err := t.chat(ctx, fmt.Sprintf("Question %d after the power cut", i+1), 12, nil)
		if err != nil {
			return fmt.Errorf("request %d of %d after %s was killed: %w", i+1, requests, victim.Spec.Name, err)
		}
		note := ""
		if n := r.Header.Get("X-PD-Attempts"); n != "1" {
			retried++
			note = "  (tried the dead one first, then went on)"
		}
		if r.Header.Get("X-PD-Decode") == victim.Address {
			return fmt.Errorf("request %d claims to be answered by %s, which is dead", i+1, victim.Spec.Name)
		}
		t.say("   request %d  right  %s -> %s%s", i+1, t.name(instance.Prefill, r), t.name(instance.Decode, r), note)
	}
	t.say("   %d of %d answered, none lost; %d of them had to be tried again, which no client saw.", requests, requests, retried)
	return nil
}

// leaseEnds shows that the registration of a dead instance goes by itself.
func (t *tour) leaseEnds(ctx context.Context) error {
	victim := t.nodes[len(t.nodes)-1]
	if t.pingTo != "" {
		t.title("It pings no more: its registration ends %s after the last ping. Wait for that ...", bridgeTTL)
	} else {
		t.title("Its registration is bound to a lease of %s, which nobody renews any more. Wait\n   for its end ...", leaseTTL)
	}
	if err := t.waitGone(ctx, victim); err != nil {
		return err
	}
	t.say("   ... gone from etcd %.1f s after the kill. This is what an operator sees:\n", time.Since(t.killed).Seconds())
	list, err := t.pdctl(ctx, "list")
	if err != nil {
		return err
	}
	t.say("   $ pdctl list --etcd-endpoints %s\n%s", t.proxy.Etcd[0], indent(list))
	for _, n := range t.nodes {
		if listed := strings.Contains(list, n.Address); listed == (n == victim) {
			return fmt.Errorf("pdctl list: %s listed: %v\n%s", n.Spec.Name, listed, list)
		}
	}
	return nil
}

// waitGone waits until etcd has no key of the node any more.
func (t *tour) waitGone(ctx context.Context, n *fleet.Node) error {
	ctx, cancel := context.WithTimeout(ctx, 4*bridgeTTL)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		list, err := t.pdctl(ctx, "list")
		if err == nil && !strings.Contains(list, n.Address) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is still registered: %w\n%s", n.Spec.Name, ctx.Err(), list)
		case <-tick.C:
		}
	}
}

func (t *tour) pdctl(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(t.bin, "pdctl"), append(args, "--etcd-endpoints", t.proxy.Etcd[0])...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("pdctl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// stay keeps everything up until ctx ends or the proxy does.
func (t *tour) stay(ctx context.Context) error {
	killed := t.nodes[len(t.nodes)-1]
	t.say("\nEverything but %s stays up until Ctrl-C. Things to try in another terminal:\n", killed.Spec.Name)
	t.say("  curl -N %s/v1/chat/completions -H 'Content-Type: application/json' \\\n"+
		"    -d '{\"model\":\"%s\",\"stream\":true,\"max_tokens\":40,\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}'", t.proxy.URL(), model)
	t.say("  curl %s/status", t.proxy.URL())
	t.say("  curl %s/metrics", t.proxy.URL())
	t.say("  %s watch --etcd-endpoints %s", filepath.Join(t.bin, "pdctl"), t.proxy.Etcd[0])
	t.say("  kill -9 %d    # another engine: %s", t.nodes[0].Engine.PID(), t.nodes[0].Spec.Name)
	t.say("  curl %s/instances/remove -H 'X-Api-Key: %s' -H 'Content-Type: application/json' \\\n"+
		"    -d '{\"type\":\"prefill\",\"instance\":\"%s\"}'    # the key is this demo's only", t.proxy.URL(), t.key, t.nodes[1].Address)
	t.say("\nLogs of all processes: %s", filepath.Join(t.fleet.Dir(), "logs"))
	select {
	case <-ctx.Done():
		t.say("\nStopped. Nothing is left behind.")
		return nil
	case <-t.proxy.Done():
		return fmt.Errorf("the proxy ended: %w; its last lines:\n%s", errors.Join(fleet.ErrExited, t.proxy.Err()), indent(t.proxy.LogTail(15)))
	}
}
