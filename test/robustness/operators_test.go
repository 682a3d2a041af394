package robustness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// operate makes a change, holds it, and undoes it.
func (r *rig) operate(ctx context.Context, a Action) {
	e := r.engine(a.Target)
	ctx = context.WithoutCancel(ctx)
	do := func(via, verb string, more ...string) Op { return r.change(ctx, via, verb, e, more...) }
	switch a.Kind {
	case "drain", "cordon":
		do(a.Via, a.Kind)
		hold(ctx, a.For)
		r.until(do, a.Via, "un"+a.Kind)
	case "drain-wait": // requests run at all proxies when the drain begins
		r.load.long(fmt.Sprintf("before-%s-%s", a.Target, a.At), int(r.plan.Seed)+int(a.At/time.Millisecond))
		hold(ctx, 200*time.Millisecond)
		if o := do("pdctl", "drain", "--wait", "--timeout", "8s"); o.Code != 0 { // repeated as the manual says
			do("pdctl", "drain", "--wait", "--timeout", "3s")
		}
		hold(ctx, a.For)
		r.until(do, a.Via, "undrain")
		if a.Alone {
			r.drainBehind(ctx, do)
		}
	case "weight-0", "weight":
		do(a.Via, a.Kind)
		hold(ctx, a.For)
		r.until(do, a.Via, "weight-default")
	case "remove":
		if e.Role == "both" {
			do(a.Via, "cordon")
			hold(ctx, a.For)
			r.until(do, a.Via, "uncordon")
			return
		}
		do("pdctl", "remove")
		hold(ctx, a.For)
		r.until(do, "pdctl", "allow")
	case "add":
		do(a.Via, "add")
		hold(ctx, a.For)
		r.removeSpare(do)
	case "add-pending":
		r.pending(ctx, a, e, do)
	}
}

// drainBehind drains an instance while a proxy is cut off from etcd and still sends requests to the instance,
// so drain --wait must not succeed. It returns after the proxy has caught up. The cut is shorter than the
// lease of the proxy's presence, so it excuses no violation.
func (r *rig) drainBehind(ctx context.Context, do func(via, verb string, more ...string) Op) {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	p := r.proxies[(r.plan.Seed+1)%uint64(len(r.proxies))]
	f := Fault{Span: Span{From: time.Now()}, Kind: "cut", Target: p.name + "-etcd"}
	restore, _ := onLinks("cut", p.links...)
	if o := do("pdctl", "drain", "--wait", "--timeout", "3s"); o.Code == 0 {
		hold(ctx, time.Second)
	}
	var lifted Op
	r.until(func(via, verb string, more ...string) Op { lifted = do(via, verb, more...); return lifted }, "pdctl", "undrain")
	r.fail(errors.Join(restore(), r.await(ctx, func() error {
		s, err := r.poll(ctx, p)
		if err == nil && s.Revision < lifted.Revision {
			err = fmt.Errorf("%s is at revision %d, and not at %d", p.name, s.Revision, lifted.Revision)
		}
		return err
	})))
	f.To = time.Now()
	r.record(func(h *History) { h.Faults = append(h.Faults, f) })
}

// pending adds an instance whose engine starts later: a proxy must add it then.
func (r *rig) pending(ctx context.Context, a Action, e *engine, do func(via, verb string, more ...string) Op) {
	killed := time.Now()
	r.fail(r.kill(e.proc))
	added := do(a.Via, "add", "--wait")
	hold(ctx, a.For/2)
	r.fail(r.startEngine(ctx, e, e.Models...))
	started := time.Now()
	r.record(func(h *History) {
		h.Faults = append(h.Faults, Fault{Span: Span{killed, started}, Kind: "kill", Target: e.Name})
	})
	if added.Code == 0 {
		ctx, cancel := context.WithTimeout(ctx, soon)
		defer cancel()
		if err := r.await(ctx, func() error { return r.registered(ctx, "decode", e) }); err != nil {
			r.record(func(h *History) {
				h.Crashes = append(h.Crashes, fmt.Sprintf("%s was to be added when it starts, and is not in etcd %s after its start (added via %s at %s: %s)",
					e.Name, time.Since(started).Round(time.Second), added.Via, h.clock(added.To), added.Output))
			})
		}
	}
	hold(ctx, a.For/2)
	r.removeSpare(do)
}

// removeSpare removes a static instance, even one that a failed add has left, and then the removal.
func (r *rig) removeSpare(do func(via, verb string, more ...string) Op) {
	r.until(func(via, verb string, _ ...string) Op { return do(via, verb, "--force") }, "pdctl", "remove")
	r.until(do, "pdctl", "allow")
}

// until repeats an undo until it succeeds.
func (r *rig) until(do func(via, verb string, more ...string) Op, via, verb string) {
	for try := range 60 {
		o := do(via, verb)
		if o.Code == 0 {
			return
		}
		if try == 59 {
			r.fail(fmt.Errorf("%s via %s: %s", verb, via, o.Output))
		}
		via = "pdctl" // the proxy may be away
		hold(r.t.Context(), 500*time.Millisecond)
	}
}

// await repeats a condition until it is met.
func (r *rig) await(ctx context.Context, condition func() error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// registered returns nil if an instance has a key in etcd.
func (r *rig) registered(ctx context.Context, role string, e *engine) error {
	resp, err := r.etcd.Get(ctx, "/pd/"+role+"/"+e.address(), clientv3.WithCountOnly())
	if err == nil && resp.Count == 0 {
		err = errors.New(e.Name + " has no key")
	}
	return err
}

// change makes one change and records it.
func (r *rig) change(ctx context.Context, via, verb string, e *engine, more ...string) Op {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	o := Op{Span: Span{From: time.Now()}, Via: via, Verb: verb, Instance: e.Role + "/" + e.address(), Wait: slices.Contains(more, "--wait") && verb == "drain"}
	if i := slices.IndexFunc(r.proxies, func(p *proxy) bool { return p.name == via }); i >= 0 {
		r.changeByRoute(ctx, r.proxies[i], &o, e)
	} else {
		r.changeByProgram(ctx, &o, e, more)
	}
	o.To = time.Now()
	o.Output = strings.Join(strings.Fields(o.Output), " ")
	for verb, undo := range undoing { // a change that was not made, or had no effect, needs no undo
		if o.Verb == undo && verb != "deregister" && (strings.Contains(o.Output, "is not removed") || strings.Contains(o.Output, "no such")) {
			o.Code = 0
		}
	}
	r.record(func(h *History) { h.Ops = append(h.Ops, o) })
	return o
}

// changeByRoute uses an admin route of a proxy.
func (r *rig) changeByRoute(ctx context.Context, p *proxy, o *Op, e *engine) {
	body := map[string]any{"type": e.Role, "instance": e.address()}
	route := o.Verb
	switch o.Verb {
	case "weight-0":
		route, body["weight"] = "weight", 0
	case "weight":
		body["weight"] = 30
	case "weight-default":
		route, body["weight"] = "weight", nil
	}
	raw, err := json.Marshal(body)
	if err != nil {
		r.fail(err)
	}
	var answer struct {
		Revision int64
		Message  string
	}
	err = r.send(ctx, "POST", p.url()+"/instances/"+route, string(raw), &answer)
	o.Revision, o.Output = answer.Revision, answer.Message
	switch {
	case err != nil:
		o.Code, o.Output = 1, err.Error()
	case o.Revision == 0 && !strings.Contains(o.Output, e.address()): // a 503 has neither
		o.Code = 1
	}
}

// changeByProgram uses pdctl.
func (r *rig) changeByProgram(ctx context.Context, o *Op, e *engine, more []string) {
	verb, args := o.Verb, []string(nil)
	switch o.Verb {
	case "weight-0":
		verb, args = "weight", []string{"0"}
	case "weight":
		args = []string{"30"}
	case "weight-default":
		verb, args = "weight", []string{"default"}
	case "add":
		args = []string{"--connector", e.Connector}
	}
	var endpoints []string
	for _, m := range r.members {
		endpoints = append(endpoints, m.client)
	}
	args = append([]string{verb, e.Role, e.address()}, args...)
	args = append(append(args, more...), "-o", "json", "--etcd-endpoints", strings.Join(endpoints, ","))
	path := r.program("pdctl", "pdctl")
	if !strings.ContainsRune(path, filepath.Separator) {
		if slices.Contains([]string{"drain", "cordon", "remove", "weight"}, verb) { // the former release does not ask
			args = append(args, "--yes")
		}
		path = filepath.Join(bin, path)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{"HOME=" + r.f.Dir()}
	var out, progress bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &progress
	err := cmd.Run()
	o.Code = cmd.ProcessState.ExitCode()
	if err != nil && o.Code < 0 {
		r.fail(err)
	}
	var answer struct{ Results []struct{ Revision int64 } }
	if json.Unmarshal(out.Bytes(), &answer) == nil {
		for _, res := range answer.Results {
			o.Revision = max(o.Revision, res.Revision)
		}
	}
	o.Output = progress.String() + out.String()
}

// deregister ends an agent as a supervisor does, and starts it again.
func (r *rig) deregister(ctx context.Context, e *engine) {
	ctx = context.WithoutCancel(ctx)
	record := func(verb string, from time.Time, err error) {
		o := Op{Span: Span{from, time.Now()}, Via: "agent", Verb: verb, Instance: e.Role + "/" + e.address()}
		if err != nil {
			o.Code, o.Output = 1, err.Error()
		}
		r.record(func(h *History) { h.Ops = append(h.Ops, o) })
	}
	from := time.Now()
	r.alive(e.agent)
	stop, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	err := e.agent.Stop(stop)
	if err == nil {
		err = e.agent.Err()
	}
	record("deregister", from, err)
	hold(ctx, time.Second)
	from = time.Now()
	r.fail(r.startAgent(ctx, e))
	record("register", from, r.await(stop, func() error { return r.registered(stop, roles(e.Role)[0], e) }))
}

// bin is the directory of the programs.
var bin string
