// Package scale measures what a large fleet with frequent changes costs proxies and etcd: it runs an
// etcd of three members, proxies, and simulated engines, registers each engine as an agent does, and
// changes the membership while requests are sent.
//
//	driver ── 1,000 × lease.Registrar ──▶ etcd-3 ◀──▶ etcd-1, etcd-2 ──▶ 8 proxies ──▶ 1,000 engines
//	loadgen ───────────────────────────────────────────────────────────▶
//
// The proxies use two of the members, so that the bytes that these send are those of the proxies.
package scale

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/loadgen"
)

// Options describes a run.
type Options struct {
	BinDir    string        // has proxy and etcd
	Instances int           // half of them prefill, half decode; at least 40
	Proxies   int           // at least 1
	Changes   int           // of the membership per minute
	Duration  time.Duration // of the changes; before them, the fleet is measured without changes for a fifth of it, at least 2 s
	Rate      int           // requests per second, to all proxies together
	Progress  io.Writer     // gets a line for each phase
}

// Phase has the figures of a phase.
type Phase struct {
	Seconds  float64
	Changes  int64
	ProxyCPU float64 // processor time of all proxies in seconds
	EtcdCPU  float64 // processor time of all etcd members in seconds
	Received float64 // bytes that etcd sent to all proxies
	Memory   Memory
	Busy     float64 // part of the machine's processor time that was used
	Lag      time.Duration

	Missed             int64 // changes that etcd did not confirm in time
	Requests, Failures int64
	Failure            string // first one
	// Seen is the time from a put until a request was answered by the instance that it made available.
	Seen, TTFT, Total loadgen.Histogram
}

// Memory is resident memory in MiB, of a process on average.
type Memory struct{ Proxy, Etcd float64 }

// Result has the figures of a run.
type Result struct {
	Options         Options
	Machine         machine.Facts
	Quiet, Changing *Phase
}

const (
	model   = "scale/simulated"
	tokens  = 16
	members = 3
)

// run is a running fleet.
type run struct {
	o       Options
	proxies []*fleet.Proxy
	etcd    []*fleet.Member
	client  *loadgen.Client
	driver  *driver
	prober  *prober
}

// Run starts the fleet, measures it, and stops it. The error names lost responses.
func Run(ctx context.Context, o Options) (_ *Result, err error) {
	machine.RaiseFiles()
	f, err := fleet.New(fleet.Options{BinDir: o.BinDir, ReadyTimeout: 2 * time.Minute})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Abandon()) }()
	r := &run{o: o, client: loadgen.NewClient(o.Rate, nil)}
	defer r.client.Close()
	if r.etcd, err = f.StartEtcd(ctx, members); err != nil {
		return nil, err
	}
	endpoints := fleet.Endpoints(r.etcd)
	r.driver, err = startDriver(ctx, endpoints[members-1:], o)
	if err != nil {
		return nil, err
	}
	defer r.driver.close()
	for i := range o.Proxies {
		p, err := f.StartProxy(ctx, fleet.ProxySpec{
			Name: fmt.Sprintf("proxy-%d", i+1), EtcdEndpoints: endpoints[:members-1], Args: []string{"--connector", "nixl", "--trace-headers"},
		})
		if err != nil {
			return nil, err
		}
		r.proxies = append(r.proxies, p)
	}
	if r.prober, err = startProber(ctx, r.driver, r.client, r.proxies); err != nil {
		return nil, err
	}
	defer r.prober.close()
	if err := r.complete(ctx); err != nil {
		return nil, err
	}
	quiet := max(2*time.Second, o.Duration/5)
	_, _ = fmt.Fprintf(o.Progress, "%d instances are served by %d proxies; %s without changes\n", o.Instances, o.Proxies, quiet)
	if _, err := r.phase(ctx, quiet/2, 0); err != nil { // connections are made
		return nil, err
	}
	res := &Result{Options: o, Machine: machine.Describe()}
	if res.Quiet, err = r.phase(ctx, quiet, 0); err != nil {
		return nil, err
	}
	_, _ = fmt.Fprintf(o.Progress, "%d changes a minute for %s\n", o.Changes, o.Duration)
	if res.Changing, err = r.phase(ctx, o.Duration, o.Changes); err != nil {
		return nil, err
	}
	if err := r.driver.settle(ctx); err != nil {
		return nil, err
	}
	if err := r.complete(ctx); err != nil {
		return nil, fmt.Errorf("after the changes: %w", err)
	}
	if err := r.driver.first; err != nil {
		_, _ = fmt.Fprintf(o.Progress, "a change failed: %v\n", err)
	}
	if n := res.Quiet.Failures + res.Changing.Failures; n > 0 {
		return res, fmt.Errorf("%d lost responses, such as: %s", n, cmp.Or(res.Quiet.Failure, res.Changing.Failure))
	}
	return res, nil
}

// complete waits until every proxy uses all instances and one of the two of the prober.
func (r *run) complete(ctx context.Context) error {
	for _, p := range r.proxies {
		if err := p.WaitFor(ctx, r.o.Instances/2, r.o.Instances-r.o.Instances/2+1); err != nil {
			return err
		}
	}
	return nil
}

// phase sends load for d and makes changes at this rate per minute.
func (r *run) phase(ctx context.Context, d time.Duration, changes int) (*Phase, error) {
	p := new(Phase)
	before, err := r.read()
	if err != nil {
		return nil, err
	}
	began, made, missed := time.Now(), r.driver.made.Load(), r.driver.missed.Load()
	ctx, cancel := context.WithTimeout(ctx, d+time.Minute)
	defer cancel()
	var all sync.WaitGroup
	probing, stop := context.WithTimeout(ctx, d)
	defer stop()
	var lost int64
	var lostErr error
	all.Go(func() { lost, lostErr = r.prober.run(probing, &p.Seen) })
	all.Go(func() { p.Lag = r.load(ctx, p, d) })
	if changes > 0 {
		each := time.Minute / time.Duration(changes)
		all.Go(func() {
			loadgen.OpenLoop(ctx, loadgen.Schedule{
				Requests: int(d / each), At: func(i int) time.Duration { return time.Duration(i) * each }, Send: r.driver.change,
			})
		})
	}
	all.Wait()
	if p.Failures += lost; p.Failure == "" && lostErr != nil {
		p.Failure = lostErr.Error()
	}
	p.Seconds, p.Changes = time.Since(began).Seconds(), r.driver.made.Load()-made
	p.Missed = r.driver.missed.Load() - missed
	after, err := r.read()
	if err != nil {
		return nil, err
	}
	p.ProxyCPU, p.EtcdCPU = after.proxyCPU-before.proxyCPU, after.etcdCPU-before.etcdCPU
	p.Received, p.Busy, p.Memory = after.sent-before.sent, (after.busy-before.busy)/(after.all-before.all), after.memory
	return p, nil
}

// load sends requests for d, to the proxies in turn, and checks the responses.
func (r *run) load(ctx context.Context, p *Phase, d time.Duration) time.Duration {
	var failures atomic.Int64
	var first sync.Once
	n := int(d.Seconds() * float64(r.o.Rate))
	lag := loadgen.OpenLoop(ctx, loadgen.Schedule{
		Requests: n, At: func(i int) time.Duration { return time.Duration(i) * time.Second / time.Duration(r.o.Rate) },
		Send: func(ctx context.Context, i int) {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			got := complete(ctx, r.client, r.proxies[i%len(r.proxies)].URL(), model, "request "+strconv.Itoa(i), tokens)
			if got.Err != nil {
				failures.Add(1)
				first.Do(func() { p.Failure = got.Err.Error() })
				return
			}
			p.TTFT.Record(got.TTFT)
			p.Total.Record(got.Total)
		},
	})
	p.Requests, p.Failures = int64(n), failures.Load()
	return lag.Max
}

// complete streams a completion and checks it.
func complete(ctx context.Context, c *loadgen.Client, url, model, prompt string, tokens int) loadgen.Result {
	body := fmt.Appendf(nil, `{"model":%q,"prompt":%q,"max_tokens":%d,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`, model, prompt, tokens)
	a := fakevllm.ExpectedText(prompt, fakevllm.Sampling{MaxTokens: tokens, IgnoreEOS: true})
	return c.Stream(ctx, url+"/v1/completions", nil, body, loadgen.Expected{
		Text: []byte(a.Text), PromptTokens: a.PromptTokens, CompletionTokens: len(a.Tokens), FinishReason: a.FinishReason,
	}, loadgen.Observer{})
}

// reading has counters of the processes and of the machine.
type reading struct {
	proxyCPU, etcdCPU, sent, busy, all float64
	memory                             Memory
}

func (r *run) read() (now reading, err error) {
	var proxies, etcd []int
	for _, p := range r.proxies {
		proxies = append(proxies, p.PID())
	}
	for i, m := range r.etcd {
		etcd = append(etcd, m.PID())
		if i < members-1 {
			n, err := sent(m.Spec.Client)
			if err != nil {
				return now, err
			}
			now.sent += n
		}
	}
	var errs [5]error
	now.proxyCPU, errs[0] = machine.CPU(proxies)
	now.etcdCPU, errs[1] = machine.CPU(etcd)
	now.busy, now.all, errs[2] = machine.Times()
	var kib int64
	kib, errs[3] = machine.Memory(proxies)
	now.memory.Proxy = float64(kib) / 1024 / float64(len(proxies))
	kib, errs[4] = machine.Memory(etcd)
	now.memory.Etcd = float64(kib) / 1024 / members
	return now, errors.Join(errs[:]...)
}

// sent returns the bytes that an etcd member has sent to clients.
func sent(address string) (float64, error) {
	res, err := http.Get("http://" + address + "/metrics") //nolint:noctx // a member on this machine
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), "etcd_network_client_grpc_sent_bytes_total "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("etcd at %s does not count what it sends: %w", address, errors.Join(lines.Err(), io.ErrUnexpectedEOF))
}

// Table returns the result as Markdown.
func (r *Result) Table() string {
	q, c := r.Quiet, r.Changing
	proxies := float64(r.Options.Proxies)
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s, %d cores, %s, pdmesh %s, %s. %d instances, %d proxies, %d requests/s, %d changes a minute for %s.\n\n",
		r.Machine.CPU, r.Machine.Cores, r.Machine.Go, version.String(), time.Now().UTC().Format("2 January 2006"),
		r.Options.Instances, r.Options.Proxies, r.Options.Rate, r.Options.Changes, r.Options.Duration)
	b.WriteString("| | without changes | with changes | per change |\n|---|---|---|---|\n")
	row := func(name string, value func(*Phase) string, per string) {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, value(q), value(c), per)
	}
	// per returns the increase of a phase's total per change, divided by n.
	per := func(total func(*Phase) float64, n float64) float64 {
		ratio := c.Seconds / q.Seconds
		return (total(c) - ratio*total(q)) / (float64(c.Changes) - ratio*float64(q.Changes)) / n
	}
	proxyCPU := func(p *Phase) float64 { return p.ProxyCPU }
	etcdCPU := func(p *Phase) float64 { return p.EtcdCPU }
	received := func(p *Phase) float64 { return p.Received }
	share := func(total func(*Phase) float64, n float64) func(*Phase) string {
		return func(p *Phase) string { return fmt.Sprintf("%.1f %%", 100*total(p)/p.Seconds/n) }
	}
	times := func(h func(*Phase) *loadgen.Histogram) func(*Phase) string {
		return func(p *Phase) string { return fmt.Sprintf("%s, %s ms", ms(h(p), 0.5), ms(h(p), 0.99)) }
	}
	row("changes a minute, measured", func(p *Phase) string { return fmt.Sprintf("%.0f", 60*float64(p.Changes)/p.Seconds) }, "")
	row("changes that etcd did not confirm in time", func(p *Phase) string { return strconv.FormatInt(p.Missed, 10) }, "")
	row("CPU of a proxy, of one core", share(proxyCPU, proxies), fmt.Sprintf("%.2f ms", 1e3*per(proxyCPU, proxies)))
	row("CPU of the three etcd members together", share(etcdCPU, 1), fmt.Sprintf("%.2f ms", 1e3*per(etcdCPU, 1)))
	row("memory of a proxy", func(p *Phase) string { return fmt.Sprintf("%.0f MiB", p.Memory.Proxy) }, "")
	row("memory of an etcd member", func(p *Phase) string { return fmt.Sprintf("%.0f MiB", p.Memory.Etcd) }, "")
	row("bytes from etcd to a proxy", func(p *Phase) string { return fmt.Sprintf("%.1f kB/s", p.Received/p.Seconds/proxies/1e3) },
		fmt.Sprintf("%.0f B", per(received, proxies)))
	row("from a put to the picker: p50, p99", times(func(p *Phase) *loadgen.Histogram { return &p.Seen }), "")
	row("time to the first token: p50, p99", times(func(p *Phase) *loadgen.Histogram { return &p.TTFT }), "")
	row("duration of a request: p50, p99", times(func(p *Phase) *loadgen.Histogram { return &p.Total }), "")
	row("requests, lost", func(p *Phase) string { return fmt.Sprintf("%d, %d", p.Requests, p.Failures) }, "")
	row("longest delay of sending a request", func(p *Phase) string { return fmt.Sprintf("%.0f ms", 1e3*p.Lag.Seconds()) }, "")
	row("the machine was busy", func(p *Phase) string { return fmt.Sprintf("%.0f %%", 100*p.Busy) }, "")
	if max(q.Busy, c.Busy) > busiest {
		b.WriteString("\nThe machine was too busy for exact figures: requests and changes waited for a processor. Repeat the run on an idle one.\n")
	}
	return b.String()
}

// busiest is the maximum used part of the machine's processor time for exact figures.
const busiest = 0.8

func ms(h *loadgen.Histogram, q float64) string {
	return fmt.Sprintf("%.1f", 1e3*h.Quantile(q).Seconds())
}
