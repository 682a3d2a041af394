package ground

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/bench/target"
	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/loadgen"
)

// Replay runs a workload over HTTP. It is not safe for concurrent use.
type Replay struct {
	Lab      *target.Lab
	Etcd     *target.Etcd
	Workload *Workload
	Warm     *Workload // sent first, so that routers learn how fast the engines are; nil: none
	Engines  int       // of each role
	Engine   Engine
	Caches   Caches
	Speed    float64
	Proxies  int     // number of our proxies; they share the engines
	Shared   float64 // result of SharedHits
	// Patience limits how long all runs together wait until the machine is idle.
	Patience time.Duration

	runs int
}

const (
	// busiest is the largest part of the machine's processor time that a valid run uses. Above
	// it, requests wait for processors instead of engines.
	busiest = 0.7
	// latest is the largest delay of the sending of a request in a valid run, in real time.
	latest = 250 * time.Millisecond
	// longest is the timeout of a request, in real time.
	longest = 5 * time.Minute
)

// Run replays the workload once through a router, with new engines.
func (p *Replay) Run(ctx context.Context, r Router) (Result, error) {
	p.runs++
	res := Result{Target: r.Name}
	if err := p.awaitIdle(ctx); err != nil {
		return res, err
	}
	e, err := startEngines(ctx, p.Engines, r.mode, p.Speed, p.Engine, p.Caches)
	if err != nil {
		return res, err
	}
	defer e.close()
	site := target.Site{
		Prefill: addresses(e.prefill), Decode: addresses(e.decode), Connector: "nixl",
		Etcd: p.Etcd.Endpoint, Prefix: fmt.Sprintf("/ground-%d", p.runs),
	}
	proxies := 1
	if r.spec.Kind == target.Mesh {
		proxies = max(1, p.Proxies)
		// Time is faster by Speed, so what is periodic must be more frequent by the same factor.
		every := func(d, least time.Duration) string { return max(least, time.Duration(float64(d)/p.Speed)).String() }
		r.spec.Flags = append(slices.Clone(r.spec.Flags), "--load-interval="+every(time.Second, 20*time.Millisecond),
			"--scrape-interval="+every(5*time.Second, 100*time.Millisecond))
		if err := p.Etcd.Register(ctx, site.Prefix, site.Connector, site.Prefill, site.Decode); err != nil {
			return res, err
		}
	}
	var pids []int
	urls := make([]string, proxies)
	for i := range urls {
		running, err := p.Lab.Start(ctx, r.spec, site)
		if err != nil {
			return res, err
		}
		defer running.Stop()
		urls[i] = "http://" + running.Address + "/v1/chat/completions"
		pids = append(pids, running.PIDs()...)
	}
	if err := p.settle(ctx, urls); err != nil {
		return res, err
	}
	if p.Warm != nil {
		if _, _, err := p.send(ctx, p.Warm.Requests, urls); err != nil {
			return res, fmt.Errorf("before the measurement: %w", err)
		}
	}
	return res, p.measure(ctx, &res, e, urls, pids)
}

// measure sends the workload and completes res.
func (p *Replay) measure(ctx context.Context, res *Result, e *engines, urls []string, pids []int) error {
	queries0, hits0, computed0 := e.caches()
	local0 := e.local()
	cpu0, err := machine.CPU(pids)
	if err != nil {
		return err
	}
	busy0, total0, err := machine.Times()
	if err != nil {
		return err
	}
	samples, lag, failure := p.send(ctx, p.Workload.Requests, urls)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	busy1, total1, err := machine.Times()
	if err != nil {
		return err
	}
	cpu1, err := machine.CPU(pids)
	if err != nil {
		return err
	}
	res.fill(samples, DefaultLimits(), p.Workload.Length)
	if failure != nil {
		res.Failure = failure.Error()
	}
	queries, hits, computed := e.caches()
	for i := range computed {
		computed[i] -= computed0[i]
	}
	res.setRatios(queries-queries0, hits-hits0, computed, p.Shared)
	res.Local = float64(e.local()-local0) / float64(max(1, res.Requests))
	res.RouterCPU = (cpu1 - cpu0) * 1e6 / float64(max(1, res.Requests))
	res.Busy = (busy1 - busy0) / (total1 - total0)
	switch {
	case res.Busy > busiest:
		res.Void = fmt.Sprintf("the machine was %.0f %% busy", 100*res.Busy)
	case lag.Max > latest:
		res.Void = fmt.Sprintf("a request was sent %v late", lag.Max.Round(time.Millisecond))
	}
	return nil
}

// send sends requests at their times. It returns the first failure.
func (p *Replay) send(ctx context.Context, list []Request, urls []string) (samples []sample, lag loadgen.Lag, first error) {
	samples = make([]sample, len(list))
	client := loadgen.NewClient(1024, nil)
	defer client.Close()
	var once sync.Once
	lag = loadgen.OpenLoop(ctx, loadgen.Schedule{
		Requests: len(list),
		At:       func(i int) time.Duration { return time.Duration(float64(list[i].At) / p.Speed) },
		Send: func(ctx context.Context, i int) {
			ctx, cancel := context.WithTimeout(ctx, longest)
			defer cancel()
			want := list[i].expected()
			header := http.Header{"Session-Id": {list[i].Session}, "X-Request-Timeout": {p.timeout()}}
			r := client.Stream(ctx, urls[i%len(urls)], header, list[i].Body(), want, loadgen.Observer{})
			samples[i].input = want.PromptTokens * Shrink
			if r.Status == http.StatusTooManyRequests || r.Status == http.StatusServiceUnavailable {
				samples[i].refused, samples[i].took = true, p.traceTime(r.Total)
				return
			}
			if r.Err != nil {
				once.Do(func() { first = fmt.Errorf("request %d: %w", i, r.Err) })
				return
			}
			samples[i].ok, samples[i].ttft = true, p.traceTime(r.TTFT)
			samples[i].work = samples[i].input + (list[i].Output-r.Cached)*Shrink
			if n := list[i].Output; n > 1 {
				samples[i].itl = p.traceTime(r.Total-r.TTFT) / time.Duration((n-1)*Shrink)
			}
		},
	})
	return samples, lag, first
}

// timeout returns the value of X-Request-Timeout: the limit of the time to the first token in real time, and at
// least the second that the header requires.
func (p *Replay) timeout() string {
	return strconv.FormatFloat(max(1, DefaultLimits().TTFT.Seconds()/p.Speed), 'f', 3, 64)
}

// traceTime converts a duration to time of the trace.
func (p *Replay) traceTime(d time.Duration) time.Duration { return time.Duration(float64(d) * p.Speed) }

// settle sends requests until each proxy has answered enough of them correctly in a row.
func (p *Replay) settle(ctx context.Context, urls []string) error {
	client := loadgen.NewClient(1, nil)
	defer client.Close()
	deadline := time.Now().Add(20 * time.Second)
	for _, url := range urls {
		for good := 0; good < 2*p.Engines; {
			r := Request{Messages: []fakevllm.Message{{Role: "user", Content: "hello"}}, Output: 1}
			got := client.Stream(ctx, url, nil, r.Body(), r.expected(), loadgen.Observer{})
			if good++; got.Err != nil {
				if good = 0; time.Now().After(deadline) {
					return fmt.Errorf("%s: no correct responses: %w", url, got.Err)
				}
				if !sleep.For(ctx, 200*time.Millisecond) {
					return ctx.Err()
				}
			}
		}
	}
	return nil
}

// awaitIdle blocks until other processes have used little processor time for two seconds, or
// Patience is used up.
func (p *Replay) awaitIdle(ctx context.Context) error {
	const look, others = 2 * time.Second, 0.25
	for {
		began := time.Now()
		busy0, all0, err := machine.Times()
		if err != nil {
			return err
		}
		if !sleep.For(ctx, look) {
			return ctx.Err()
		}
		busy1, all1, err := machine.Times()
		if err != nil || (busy1-busy0)/(all1-all0) < others || p.Patience <= 0 {
			return err
		}
		p.Patience -= time.Since(began)
	}
}

// Router is our proxy or another router, with a policy.
type Router struct {
	Name string
	spec target.Spec
	mode fakevllm.Mode // KV transfer of its engines
}

// Programs are the programs of other routers.
type Programs struct{ VLLMRouter, SMG string }

// Find returns the router with a name: one of our policies, which may be followed by flags
// as in prefix+--disaggregate=auto, or vllm-router:POLICY, or smg:POLICY. Our proxy also
// gets the flags more.
func Find(name string, p Programs, more []string) (Router, error) {
	peer, policy, ok := strings.Cut(name, ":")
	if !ok {
		parts := strings.Split(name, "+")
		flags := append(append([]string{"--prefill-policy", parts[0]}, parts[1:]...), more...)
		return Router{Name: name, mode: fakevllm.NIXL, spec: target.Spec{Name: "pdmesh", Kind: target.Mesh, Flags: flags}}, nil
	}
	r := Router{Name: name, mode: fakevllm.NIXL, spec: target.Spec{Name: peer + "-" + policy, Policy: policy}}
	switch peer {
	case "vllm-router":
		r.spec.Kind, r.spec.Program = target.VLLMRouter, p.VLLMRouter
	case "smg":
		r.spec.Kind, r.spec.Program = target.SMG, p.SMG
		// smg sends no transfer params to HTTP engines. It waits for prefill, then it sends
		// the request to decode, as for engines that share a cache.
		r.mode = fakevllm.Plain
	default:
		return r, fmt.Errorf("target %q: must be a policy, vllm-router:POLICY or smg:POLICY", name)
	}
	if _, err := exec.LookPath(r.spec.Program); err != nil {
		return r, fmt.Errorf("%s: %w", peer, target.ErrAbsent)
	}
	return r, nil
}
