package demo

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/loadgen"
)

const (
	model = "demo/simulated"
	// The pace of a small model, slow enough to watch the tokens arrive.
	ttft = 150 * time.Millisecond
	itl  = 25 * time.Millisecond
	// leaseTTL is the shortest TTL that an agent accepts, because the tour waits
	// for a lease to expire.
	leaseTTL = 5 * time.Second
	// bridgeTTL is the TTL of the records that a proxy writes for engines that
	// register by ZeroMQ.
	bridgeTTL = 15 * time.Second
	// settleTimeout bounds the waits for a state of the fleet.
	settleTimeout = 4 * bridgeTTL
)

// tour is the state of one run of the demo.
type tour struct {
	o      options
	out    io.Writer
	fleet  *fleet.Fleet
	key    string // admin key of the proxies
	pingTo string // ZeroMQ address for MoRI-IO engines; empty for other connectors
	client *loadgen.Client
	begin  time.Time

	etcd      []*fleet.Member // empty if the first proxy embeds etcd
	endpoints []string        // of etcd
	proxies   []*fleet.Proxy
	nodes     []*fleet.Node
	lost      *fleet.Member // the killed etcd member; nil if there is none
	killed    time.Time     // when the last node was killed
	step      int
}

func demo(ctx context.Context, o options, stdout io.Writer) (err error) {
	f, err := fleet.New(fleet.Options{BinDir: o.bin})
	if err != nil {
		return err
	}
	t := &tour{o: o, out: stdout, fleet: f, key: rand.Text(), begin: time.Now()}
	t.client = loadgen.NewClient(8, http.Header{"X-Pd-Trace": {"1"}, "X-Api-Key": {t.key}})
	defer t.client.Close()

	err = t.run(ctx)
	// The data is temporary, so the processes are killed.
	if err := errors.Join(err, f.Abandon()); err != nil {
		return err
	}
	t.say("\nAll processes are stopped, and their data is removed.")
	return nil
}

// run makes the tour, and keeps the fleet running until ctx ends unless --once
// is set. An interrupt is not an error.
func (t *tour) run(ctx context.Context) error {
	steps := []func(context.Context) error{t.startProxies, t.startNodes, t.ask}
	if t.o.etcd > 0 {
		steps = slices.Insert(steps, 0, t.startEtcd)
	}
	if t.o.proxies > 1 {
		steps = append(steps, t.agree)
	}
	if t.o.etcd > 1 {
		steps = append(steps, t.loseMember)
	}
	steps = append(steps, t.killNode, t.leaseEnds)
	if t.o.keep {
		steps = append(steps, t.restore)
	}
	t.say("pdmesh demo. All processes run on this machine and listen on 127.0.0.1 only.")
	for _, step := range steps {
		if err := step(ctx); err != nil {
			if ctx.Err() != nil {
				t.say("\nInterrupted.")
				return nil //nolint:nilerr // an interrupt is not an error
			}
			return fmt.Errorf("step %d failed: %w", t.step, err)
		}
	}
	t.say("\nAll %d steps passed.", t.step)
	if t.o.once {
		return nil
	}
	return t.stay(ctx)
}

func (t *tour) say(format string, args ...any) { fmt.Fprintf(t.out, format+"\n", args...) }

// title prints the heading of the next step, wrapped into lines.
func (t *tour) title(format string, args ...any) {
	t.step++
	line := fmt.Sprintf("\n%d.", t.step)
	for word := range strings.FieldsSeq(fmt.Sprintf(format, args...)) {
		if len(line)+len(word) > width+8 {
			t.say("%s", line)
			line = "  "
		}
		line += " " + word
	}
	t.say("%s", line)
}

func (t *tour) startEtcd(ctx context.Context) (err error) {
	t.title("Start an etcd; members: %d.", t.o.etcd)
	if t.etcd, err = t.fleet.StartEtcd(ctx, t.o.etcd); err != nil {
		return err
	}
	t.endpoints = fleet.Endpoints(t.etcd)
	for _, m := range t.etcd {
		t.say("   %-10s %s", m.Name(), m.Spec.Client)
	}
	return nil
}

func (t *tour) startProxies(ctx context.Context) error {
	what := "a proxy"
	if t.o.proxies > 1 {
		what = fmt.Sprintf("%d proxies", t.o.proxies)
	}
	embedded := len(t.endpoints) == 0
	switch {
	case !embedded:
		t.title("Start %s. Proxies find the fleet in etcd.", what)
	case t.o.proxies > 1:
		t.title("Start %s. The first runs an embedded etcd, where all of them find the fleet.", what)
	default:
		t.title("Start %s. It runs an embedded etcd, where it finds the fleet.", what)
	}
	bridge := []string{}
	if strings.HasPrefix(t.o.connector, connector.MoRIIO) {
		ports, err := fleet.FreePorts(1)
		if err != nil {
			return err
		}
		t.pingTo = "tcp://127.0.0.1:" + strconv.Itoa(ports[0])
		bridge = []string{"--zmq-register", t.pingTo}
	}
	for i := range t.o.proxies {
		args := []string{"--connector", t.o.connector}
		if i == 0 {
			args = append(args, bridge...)
		}
		p, err := t.fleet.StartProxy(ctx, fleet.ProxySpec{
			Name: fmt.Sprintf("proxy-%d", i+1), EtcdEndpoints: t.endpoints, AdminKey: t.key, Args: args,
		})
		if err != nil {
			return err
		}
		t.endpoints = p.Etcd
		t.proxies = append(t.proxies, p)
		t.say("   %-10s %s", p.Name(), p.URL())
	}
	if embedded {
		t.say("   %-10s %s", "etcd", t.endpoints[0])
	}
	return nil
}

func (t *tour) startNodes(ctx context.Context) error {
	if t.pingTo != "" {
		t.title("Start two prefill and two decode engines (simulated, no GPU) with the MoRI-IO connector."+
			" They ping %s by ZeroMQ, which probes each of them and registers it in etcd.", t.proxies[0].Name())
	} else {
		t.title("Start two prefill and two decode engines (simulated, no GPU), each with an agent." +
			" The agent probes its engine, then registers it in etcd.")
	}
	begin := time.Now()
	for _, role := range instance.Roles() {
		for i := range 2 {
			spec := fleet.NodeSpec{
				Name: fmt.Sprintf("%s-%d", role, i+1), Role: role, Connector: t.o.connector, Model: model,
				ITL: itl, Etcd: t.endpoints, TTL: leaseTTL,
			}
			if t.pingTo != "" {
				spec.Etcd, spec.EngineArgs = nil, []string{"--ping-to", t.pingTo}
			}
			if role == instance.Prefill {
				spec.TTFT = ttft // a decode engine receives a computed prompt
			}
			n, err := t.fleet.StartNode(ctx, spec)
			if err != nil {
				return err
			}
			t.nodes = append(t.nodes, n)
			t.say("   %-10s %s", n.Spec.Name, n.Address)
		}
	}
	if err := t.waitForAll(ctx); err != nil {
		return err
	}
	subject := "The proxy"
	if t.o.proxies > 1 {
		subject = "Every proxy"
	}
	t.say("   %s found all four in etcd %.1f s after the first was started.", subject, time.Since(begin).Seconds())
	t.say("   %d processes run, %.1f s after the start of the demo.", len(t.fleet.Running()), time.Since(t.begin).Seconds())
	return nil
}

// waitForAll waits until every proxy serves all engines.
func (t *tour) waitForAll(ctx context.Context) error {
	for _, p := range t.proxies {
		if err := p.WaitFor(ctx, 2, 2); err != nil {
			return err
		}
	}
	return nil
}

func (t *tour) ask(ctx context.Context) error {
	t.title("Send a chat request. The answer is streamed. The words of the simulated model are made up," +
		" but the same question gets the same answer, so every byte is checked.")
	const question = "What happens when an engine dies?"
	t.say("   > %s\n", question)
	p := &printer{w: t.out, indent: "   < "}
	r, err := t.chat(ctx, t.proxies[0], question, 40, p.Write)
	p.end()
	if err != nil {
		return err
	}
	t.say("   prompt computed by   %s", t.name(instance.Prefill, r))
	t.say("   answer written by    %s", t.name(instance.Decode, r))
	t.say("   first token after    %d ms; 40 tokens, all as expected", r.TTFT.Milliseconds())
	return nil
}

// agree drains an instance at the first proxy and lifts that at the last one.
func (t *tour) agree(ctx context.Context) error {
	first, last, drained := t.proxies[0], t.proxies[len(t.proxies)-1], t.nodes[2]
	t.title("Drain %s at %s, and send requests to %s.", drained.Spec.Name, first.Name(), last.Name())
	if err := t.setIntent(ctx, first, "drain", drained); err != nil {
		return err
	}
	for i := range 3 {
		r, err := t.chat(ctx, last, fmt.Sprintf("Question %d during the drain", i+1), 12, nil)
		if err != nil {
			return err
		}
		if r.Header.Get("X-PD-Decode") == drained.Address {
			return fmt.Errorf("%s used %s, which %s has drained", last.Name(), drained.Spec.Name, first.Name())
		}
		t.say("   request %d  ok  %s: %s -> %s", i+1, last.Name(), t.name(instance.Prefill, r), t.name(instance.Decode, r))
	}
	return t.setIntent(ctx, last, "undrain", drained)
}

// setIntent posts drain or undrain of a node to a proxy, and waits until every
// proxy shows the result. It retries while etcd has no leader.
func (t *tour) setIntent(ctx context.Context, at *fleet.Proxy, verb string, n *fleet.Node) error {
	begin := time.Now()
	body := fmt.Appendf(nil, `{"type":%q,"instance":%q,"reason":"demo"}`, n.Spec.Role, n.Address)
	err := settle(ctx, func(ctx context.Context) error {
		return t.post(ctx, at.URL()+"/instances/"+verb, body)
	})
	if err != nil {
		return err
	}
	accepted := time.Since(begin)
	want := instance.Intent("")
	if verb == "drain" {
		want = instance.Drain
	}
	err = settle(ctx, func(ctx context.Context) error {
		for _, p := range t.proxies {
			s, err := p.Status(ctx)
			if err != nil {
				return err
			}
			at := slices.IndexFunc(s.Instances, func(l instance.Listing) bool {
				return l.Role == n.Spec.Role && l.Address == n.Address
			})
			if at < 0 || s.Instances[at].Intent != want {
				return fmt.Errorf("%s does not show the %s of %s", p.Name(), verb, n.Spec.Name)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	all := "it"
	if len(t.proxies) > 1 {
		all = "all proxies"
	}
	t.say("   %s of %s: accepted by %s after %d ms, shown by %s after %d ms", verb, n.Spec.Name, at.Name(), accepted.Milliseconds(),
		all, time.Since(begin).Milliseconds())
	return nil
}

// loseMember kills the first etcd member.
func (t *tour) loseMember(ctx context.Context) error {
	t.lost = t.etcd[0]
	t.title("Kill %s (kill -9). The other %d members are a quorum: requests do not notice, and changes go on.",
		t.lost.Name(), len(t.etcd)-1)
	if err := t.lost.Kill(); err != nil {
		return err
	}
	if err := t.requests(ctx, 2*len(t.proxies), "without "+t.lost.Name()); err != nil {
		return err
	}
	for _, verb := range []string{"drain", "undrain"} {
		if err := t.setIntent(ctx, t.proxies[0], verb, t.nodes[2]); err != nil {
			return err
		}
	}
	return nil
}

// requests sends n requests to all proxies in turn.
func (t *tour) requests(ctx context.Context, n int, when string) error {
	retried := 0
	for i := range n {
		p := t.proxies[i%len(t.proxies)]
		r, err := t.chat(ctx, p, fmt.Sprintf("Question %d %s", i+1, when), 12, nil)
		if err != nil {
			return fmt.Errorf("request %d of %d %s: %w", i+1, n, when, err)
		}
		if !t.killed.IsZero() && r.Header.Get("X-PD-Decode") == t.victim().Address {
			return fmt.Errorf("request %d names %s, which is dead, as its decode instance", i+1, t.victim().Spec.Name)
		}
		note := ""
		if r.Header.Get("X-PD-Attempts") != "1" {
			retried++
			note = "  (retried)"
		}
		t.say("   request %d  ok  %s: %s -> %s%s", i+1, p.Name(), t.name(instance.Prefill, r), t.name(instance.Decode, r), note)
	}
	if retried > 0 {
		t.say("   %d of %d answered; the proxy retried %d of them, which no client noticed.", n, n, retried)
	} else {
		t.say("   %d of %d answered.", n, n)
	}
	return nil
}

// victim is the node that killNode kills.
func (t *tour) victim() *fleet.Node { return t.nodes[len(t.nodes)-1] }

// killNode kills a decode engine and sends requests at once, some of which will
// be sent to it first.
func (t *tour) killNode(ctx context.Context) error {
	victim := t.victim()
	what := "its agent"
	if victim.Agent == nil {
		what = "all that it holds"
	}
	t.title("Kill %s and %s, as a power failure would (kill -9), and send requests at once.", victim.Spec.Name, what)
	if err := victim.Kill(); err != nil {
		return err
	}
	t.killed = time.Now()
	return t.requests(ctx, max(6, 2*len(t.proxies)), "after the power failure")
}

// leaseEnds waits until the record of the dead instance has expired.
func (t *tour) leaseEnds(ctx context.Context) error {
	victim := t.victim()
	if t.pingTo != "" {
		t.title("Its pings have ended: its record expires %s after the last one. Wait for that ...", bridgeTTL)
	} else {
		t.title("Its record is bound to a lease of %s, which is no longer renewed. Wait until it expires ...", leaseTTL)
	}
	err := settle(ctx, func(ctx context.Context) error {
		list, err := t.pdctl(ctx, "list")
		if err == nil && strings.Contains(list, victim.Address) {
			err = fmt.Errorf("%s is still registered:\n%s", victim.Spec.Name, list)
		}
		return err
	})
	if err != nil {
		return err
	}
	t.say("   ... removed from etcd %.1f s after the kill. pdctl shows:\n", time.Since(t.killed).Seconds())
	list, err := t.pdctl(ctx, "list")
	if err != nil {
		return err
	}
	t.say("   $ pdctl list --etcd-endpoints %s\n%s", strings.Join(t.endpoints, ","), indent(list))
	for _, n := range t.nodes {
		if listed := strings.Contains(list, n.Address); listed == (n == victim) {
			return fmt.Errorf("pdctl list: %s listed: %v\n%s", n.Spec.Name, listed, list)
		}
	}
	return nil
}

// restore starts again what the tour has killed.
func (t *tour) restore(ctx context.Context) error {
	victim := t.victim()
	names := []string{victim.Spec.Name}
	if t.lost != nil {
		names = append([]string{t.lost.Name()}, names...)
	}
	t.title("Restart %s.", strings.Join(names, " and "))
	if t.lost != nil {
		m, err := t.fleet.StartMember(ctx, t.lost.Spec)
		if err != nil {
			return err
		}
		t.etcd[slices.Index(t.etcd, t.lost)], t.lost = m, nil
	}
	n, err := t.fleet.StartNode(ctx, victim.Spec)
	if err != nil {
		return err
	}
	t.nodes[len(t.nodes)-1] = n
	if err := t.waitForAll(ctx); err != nil {
		return err
	}
	t.say("   All %d processes run, and all four engines serve.", len(t.fleet.Running()))
	return nil
}

// errRefused is wrapped by errors that end settle at once.
var errRefused = errors.New("refused")

// settle calls try until it returns nil or errRefused, for at most settleTimeout.
func settle(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil || errors.Is(err, errRefused) {
			return err
		}
		if !sleep.For(ctx, 20*time.Millisecond) {
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// post sends a change to an admin route. The error wraps errRefused unless the
// proxy may accept the change later.
func (t *tour) post(ctx context.Context, url string, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Api-Key", t.key)
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		return nil
	}
	answer, _ := io.ReadAll(io.LimitReader(res.Body, 300)) // best effort: the status may be enough
	err = fmt.Errorf("POST %s: %s: %s", url, res.Status, instance.Printable(string(answer), 300))
	if res.StatusCode != http.StatusServiceUnavailable {
		err = fmt.Errorf("%w: %w", errRefused, err)
	}
	return err
}

func (t *tour) pdctl(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(t.o.bin, "pdctl"), append(args, "--etcd-endpoints", strings.Join(t.endpoints, ","))...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("pdctl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// stay keeps the fleet running until ctx ends, and reports processes that end.
// It returns an error when no proxy is left.
func (t *tour) stay(ctx context.Context) error {
	t.say("\nThe fleet runs until Ctrl-C. Its processes:\n")
	running := t.fleet.Running()
	addresses := t.addresses()
	for _, p := range running {
		t.say("  %-15s  %-21s  pid %d", p.Name(), addresses[p.Name()], p.PID())
	}
	t.commands()
	t.say("\nLogs: %s", filepath.Join(t.fleet.Dir(), "logs"))

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan *fleet.Process, len(running))
	for _, p := range running {
		go func() { // ends with the process, or with stay
			select {
			case <-p.Done():
				ended <- p
			case <-ctx.Done():
			}
		}()
	}
	proxies := len(t.proxies)
	for {
		select {
		case <-ctx.Done():
			return nil
		case p := <-ended:
			if ctx.Err() != nil {
				return nil
			}
			how := "exit code 0"
			if p.Err() != nil {
				how = p.Err().Error()
			}
			t.say("%s has ended: %s", p.Name(), how)
			if slices.ContainsFunc(t.proxies, func(proxy *fleet.Proxy) bool { return proxy.Process == p }) {
				if proxies--; proxies == 0 {
					return fmt.Errorf("no proxy is left: %w; last log lines of %s:\n%s", errors.Join(fleet.ErrExited, p.Err()), p.Name(), indent(p.LogTail(15)))
				}
			}
		}
	}
}

// addresses returns where each process listens, by its name. Agents listen on a
// local socket only.
func (t *tour) addresses() map[string]string {
	out := make(map[string]string)
	for _, m := range t.etcd {
		out[m.Name()] = m.Spec.Client
	}
	for _, p := range t.proxies {
		out[p.Name()] = p.Address
	}
	for _, n := range t.nodes {
		out[n.Spec.Name] = n.Address
	}
	return out
}

// commands prints commands to paste into another terminal.
func (t *tour) commands() {
	proxy, pdctl := t.proxies[0], filepath.Join(t.o.bin, "pdctl")
	etcd := "--etcd-endpoints " + strings.Join(t.endpoints, ",")
	t.say("\nCommands to try in another terminal:\n")
	t.say("  curl -N %s/v1/chat/completions -H 'Content-Type: application/json' \\\n"+
		"    -d '{\"model\":\"%s\",\"stream\":true,\"max_tokens\":40,\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}'",
		t.proxies[len(t.proxies)-1].URL(), model)
	t.say("  curl %s/status", proxy.URL())
	t.say("  curl %s/metrics", proxy.URL())
	t.say("  %s list %s", pdctl, etcd)
	t.say("  %s watch %s", pdctl, etcd)
	t.say("  %s drain prefill %s --wait %s", pdctl, t.nodes[0].Address, etcd)
	t.say("  %s undrain prefill %s %s", pdctl, t.nodes[0].Address, etcd)
	t.say("  curl %s/instances/remove -H 'X-Api-Key: %s' -H 'Content-Type: application/json' \\\n"+
		"    -d '{\"type\":\"prefill\",\"instance\":\"%s\"}'    # the admin key of this fleet", proxy.URL(), t.key, t.nodes[1].Address)
	t.say("  kill -9 %d    # %s", t.nodes[0].Engine.PID(), t.nodes[0].Spec.Name)
	if len(t.etcd) > 1 {
		last := t.etcd[len(t.etcd)-1]
		t.say("  kill -9 %d    # %s", last.PID(), last.Name())
	}
	if len(t.proxies) > 1 {
		last := t.proxies[len(t.proxies)-1]
		t.say("  kill -9 %d    # %s", last.PID(), last.Name())
	}
	t.say("\nDashboard: %s/", proxy.URL())
}
