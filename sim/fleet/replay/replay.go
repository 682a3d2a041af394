package replay

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/loadgen"
)

const (
	modelName = "replay/simulated"
	// agentTTL exceeds the default, because agents may get no CPU time for a while
	// on a saturated machine.
	agentTTL = 30 * time.Second
)

var (
	errIncorrect   = errors.New("not every answer was complete and correct")
	errInterrupted = errors.New("interrupted")
)

// replay starts the fleet, sends the trace and prints the report. It returns nil if
// every answer was correct.
func replay(ctx context.Context, o options, stdout io.Writer) (err error) {
	file, err := os.Open(o.trace)
	if err != nil {
		return fmt.Errorf("--trace: %w", err)
	}
	entries, err := loadgen.ReadTrace(file, o.limit)
	file.Close()
	if err != nil {
		return fmt.Errorf("--trace %s: %w", o.trace, err)
	}

	f, err := fleet.New(fleet.Options{BinDir: o.bin})
	if err != nil {
		return err
	}
	// The data is temporary, so the processes are killed.
	defer func() { err = errors.Join(err, f.Abandon()) }()

	fmt.Fprintf(stdout, "Starting %d proxies, %d prefill and %d decode engines with an agent each ...\n", o.proxies, o.prefill, o.decode)
	key := rand.Text()
	proxies, nodes, err := o.launch(ctx, f, key)
	if err != nil {
		return err
	}
	last := entries[len(entries)-1].At(o.speed)
	fmt.Fprintf(stdout, "Sending %s requests over %s (%g times the recorded speed).\n", thousands(len(entries)), round(last), o.speed)

	client := loadgen.NewClient(o.maxInFlight, http.Header{"X-Pd-Trace": {"1"}, "X-Api-Key": {key}})
	defer client.Close()
	t := &tally{total: len(entries), share: make(map[string]int)}
	stopProgress := startProgress(stdout, t)
	t.start = time.Now()
	lag := loadgen.OpenLoop(ctx, loadgen.Schedule{
		Requests: len(entries), MaxInFlight: o.maxInFlight,
		At: func(i int) time.Duration { return entries[i].At(o.speed) },
		Send: func(ctx context.Context, i int) {
			t.sent.Add(1)
			body, want := request(&entries[i])
			reqCtx, cancel := context.WithTimeout(ctx, o.timeout)
			defer cancel()
			proxy := proxies[i%len(proxies)]
			r := client.Stream(reqCtx, proxy.URL()+"/v1/completions", nil, body, want, loadgen.Observer{ITL: &t.itl})
			if ctx.Err() == nil { // otherwise the interrupt ended the request
				t.add(i, want, r)
			}
		},
	})
	t.took = time.Since(t.start)
	stopProgress()

	engines, engineErr := engineStates(context.WithoutCancel(ctx), nodes)
	t.report(stdout, o, lag, engines)
	switch {
	case ctx.Err() != nil:
		return errInterrupted
	case t.failed.Load()+t.wrong.Load() > 0:
		return errIncorrect
	}
	return engineErr
}

// launch starts the proxies, then all engines and agents together, and waits until each proxy uses all engines.
func (o *options) launch(ctx context.Context, f *fleet.Fleet, key string) (proxies []*fleet.Proxy, nodes []*fleet.Node, err error) {
	var etcd []string
	for i := range o.proxies {
		p, err := f.StartProxy(ctx, fleet.ProxySpec{
			Name: fmt.Sprintf("proxy-%d", i+1), EtcdEndpoints: etcd, AdminKey: key, Args: []string{"--access-log=off", "--connector", o.connector},
		})
		if err != nil {
			return nil, nil, err
		}
		etcd, proxies = p.Etcd, append(proxies, p)
	}
	nodes = make([]*fleet.Node, o.prefill+o.decode)
	var group errgroup.Group
	for i := range nodes {
		s := fleet.NodeSpec{
			Name: fmt.Sprintf("prefill-%d", i+1), Role: instance.Prefill, Connector: o.connector, Model: modelName, TTFT: o.ttft, ITL: o.itl, Etcd: etcd, TTL: agentTTL,
			EngineArgs: []string{"--faults", "--strict"}, // --faults serves /fake/state, --strict counts invalid requests of a proxy
		}
		if i >= o.prefill {
			s.Name, s.Role, s.TTFT = fmt.Sprintf("decode-%d", i-o.prefill+1), instance.Decode, 0 // it receives a computed prompt
		}
		group.Go(func() (err error) {
			nodes[i], err = f.StartNode(ctx, s)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	for _, p := range proxies {
		if err := p.WaitFor(ctx, o.prefill, o.decode); err != nil {
			return nil, nil, err
		}
	}
	return proxies, nodes, nil
}

// request returns the body for an entry, and the expected answer.
func request(e *loadgen.Entry) ([]byte, loadgen.Expected) {
	body := make([]byte, 0, 256+7*e.InputLength) // an id has at most six digits
	body = append(body, `{"model":"`+modelName+`","prompt":[`...)
	prompt := make([]int, 0, e.InputLength)
	e.EachToken(model.FirstTextToken, model.FirstByte, func(id int) {
		body = strconv.AppendInt(body, int64(id), 10)
		body = append(body, ',')
		prompt = append(prompt, id)
	})
	body[len(body)-1] = ']'
	body = append(body, `,"max_tokens":`...)
	body = strconv.AppendInt(body, int64(e.OutputLength), 10)
	body = append(body, `,"ignore_eos":true,"temperature":0,"stream":true,"stream_options":{"include_usage":true}}`...)

	answer := model.Generate(prompt, model.Sampling{MaxTokens: e.OutputLength, IgnoreEOS: true})
	return body, loadgen.Expected{Text: []byte(answer.Text), PromptTokens: e.InputLength, CompletionTokens: e.OutputLength, FinishReason: "length"}
}

// tally collects results. It is safe for concurrent use.
type tally struct {
	total int
	start time.Time
	took  time.Duration

	sent, correct, wrong, failed atomic.Int64
	promptTokens, outputTokens   atomic.Int64
	retried                      atomic.Int64 // correct answers after more than one attempt
	ttft, itl, whole             loadgen.Histogram
	mu                           sync.Mutex     // guards the fields below
	share                        map[string]int // "prefill 127.0.0.1:1" → answers that it contributed to
	failures                     []string       // the first maxFailures
}

const maxFailures = 10

func (t *tally) add(i int, want loadgen.Expected, r loadgen.Result) {
	if r.Err != nil {
		kind := "failed"
		if errors.Is(r.Err, loadgen.ErrWrong) {
			kind = "wrong"
			t.wrong.Add(1)
		} else {
			t.failed.Add(1)
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if len(t.failures) < maxFailures {
			t.failures = append(t.failures, fmt.Sprintf("request %d (line %d of the trace) %s after %s: %v", i, i+1, kind, round(r.Total), r.Err))
		}
		return
	}
	t.correct.Add(1)
	t.promptTokens.Add(int64(want.PromptTokens))
	t.outputTokens.Add(int64(r.Tokens))
	t.ttft.Record(r.TTFT)
	t.whole.Record(r.Total)
	if n, err := strconv.Atoi(r.Header.Get("X-PD-Attempts")); err == nil && n > 1 {
		t.retried.Add(1)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.share["prefill "+r.Header.Get("X-PD-Prefill")]++
	t.share["decode "+r.Header.Get("X-PD-Decode")]++
}

// engine is the state that one engine reports.
type engine struct {
	node     *fleet.Node
	counters fakevllm.Counters
	remarks  []string // invalid requests that it received
}

var errEngines = errors.New("the engines received invalid requests")

// engineStates reads the state of every engine. The error lists the invalid
// requests that the engines received.
func engineStates(ctx context.Context, nodes []*fleet.Node) ([]engine, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var engines []engine
	var errs []error
	for _, node := range nodes {
		var s fakevllm.State
		if err := node.Get(ctx, "/fake/state", &s); err != nil {
			errs = append(errs, err)
			continue
		}
		e := engine{node: node, counters: s.Counters}
		for _, list := range [][]string{s.Violations, s.BadParams, s.Refusals} {
			e.remarks = append(e.remarks, list...)
		}
		if len(e.remarks) > 0 {
			errs = append(errs, fmt.Errorf("%w: %s received %d, the first: %s", errEngines, node.Spec.Name, len(e.remarks), e.remarks[0]))
		}
		engines = append(engines, e)
	}
	return engines, errors.Join(errs...)
}
