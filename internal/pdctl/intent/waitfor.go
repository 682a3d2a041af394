package intent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

// drained is the state of --for that also waits for the proxies.
const drained = "drained"

// waitFor is a condition on the state of instances.
type waitFor struct {
	state string // a value of state=, or drained
	count int    // number of instances that must have the state; 0: all that are selected
	named []instance.Key
	role  instance.Role // "": both
	sel   instance.Selector
	limit time.Duration
	each  map[instance.Role]int // number of instances of each role, instead of count, named and role; nil: not set
	left  []instance.Key        // of named, with state drained: those that are drained and not registered any more
}

// parseEach parses arguments of the form ROLE=N. It returns nil if the first one is of another form.
func parseEach(args []string) (map[instance.Role]int, error) {
	if len(args) == 0 || !strings.Contains(args[0], "=") {
		return nil, nil
	}
	each := map[instance.Role]int{}
	for _, arg := range args {
		name, text, _ := strings.Cut(arg, "=")
		role, err := instance.ParseRole(name)
		n, bad := strconv.Atoi(text)
		if err != nil || bad != nil || n < 1 || each[role] > 0 {
			return nil, cli.Wrongf("%q: use prefill=N and decode=N, with numbers of 1 or more", instance.Printable(arg, 80))
		}
		each[role] = n
	}
	return each, nil
}

// parseFor parses the condition of --for.
func parseFor(text string) (string, error) {
	state := strings.TrimPrefix(text, "state=")
	if state == drained {
		return state, nil
	}
	if _, err := instance.ParseSelector("state=" + state); err != nil {
		return "", cli.Wrongf("--for %q: use state=ready, state=removed, state=drained or another state of pdctl list", instance.Printable(text, 80))
	}
	return instance.EffectiveState(state), nil
}

// run polls etcd until the condition is met. It continues while etcd does not answer.
func (w *waitFor) run(ctx context.Context, s *session.Session) error {
	end := time.Now().Add(w.limit)
	last, away := "", "" // away is the first of successive errors of etcd: they may differ in ports
	for {
		start := time.Now()
		open, done, err := w.poll(ctx, s, time.Until(end))
		switch {
		case ctx.Err() != nil:
			return errInterrupted
		case done:
			return err
		case err != nil && !errors.Is(err, etcd.ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded):
			return err
		case err != nil:
			away = cmp.Or(away, session.WithoutHint(err))
			open = away
		default:
			away = ""
		}
		progress(s, &last, "waiting: "+open)
		if !sleep.For(ctx, pollGap(start)) {
			return errInterrupted
		}
		if time.Now().After(end) {
			return cli.Exit(fmt.Errorf("after %s: %s", w.limit, open), exitTimeout)
		}
	}
}

// poll reads the membership once. open describes the unmet part of the condition. done reports
// whether the wait is over; err is then its result.
func (w *waitFor) poll(ctx context.Context, s *session.Session, left time.Duration) (open string, done bool, err error) {
	err = s.With(ctx, func(conn *session.Conn) error {
		snap, _, err := s.Seen(ctx, conn)
		if err != nil {
			return err
		}
		if err := w.findLeft(ctx, s, conn, snap); err != nil {
			return err
		}
		var met []instance.Key
		if met, open = w.meets(snap); open != "" {
			return nil
		}
		if done = true; w.state == drained {
			if err := awaitFree(ctx, s, conn, 0, met, max(left, time.Second)); err != nil {
				return err
			}
		}
		return w.print(s, met, snap.Revision)
	})
	return open, done, err
}

// findLeft sets left. It returns an error for a named instance that is neither registered nor drained.
func (w *waitFor) findLeft(ctx context.Context, s *session.Session, conn *session.Conn, snap *instance.Snapshot) error {
	if w.state != drained {
		return nil
	}
	w.left = slices.DeleteFunc(slices.Clone(w.named), func(k instance.Key) bool { _, ok := snap.Lookup(k); return ok })
	if len(w.left) == 0 {
		return nil
	}
	r, err := conn.Store.Reader.Reports(ctx, w.left)
	if err != nil {
		return s.Hint(err)
	}
	for _, k := range w.left {
		if r.Intents[k].Intent != instance.Drain {
			return fmt.Errorf("%s is neither registered nor drained; see pdctl list", k)
		}
	}
	return nil
}

// meets returns the instances that have the state; open describes the unmet part of the condition.
func (w *waitFor) meets(snap *instance.Snapshot) (met []instance.Key, open string) {
	if w.each != nil {
		var missing []string
		for _, role := range instance.Roles() {
			if n := w.each[role]; n > 0 {
				one := waitFor{state: w.state, count: n, role: role, sel: w.sel}
				these, open := one.meets(snap)
				if met = append(met, these...); open != "" {
					missing = append(missing, string(role)+": "+open)
				}
			}
		}
		return met, strings.Join(missing, "; ")
	}
	met, missing := w.check(snap)
	need := max(1, w.count)
	if w.state == string(instance.Removed) && w.count == 0 {
		need = 0
	}
	if len(met) < need || len(missing) > 0 && w.count == 0 {
		of := fmt.Sprintf("at least %d", need)
		if w.count == 0 && len(missing) > 0 {
			of = strconv.Itoa(len(met) + len(missing))
		}
		if open = fmt.Sprintf("%d of %s instances are %s", len(met), of, w.state); len(missing) > 0 {
			open += ": " + strings.Join(missing[:min(len(missing), 5)], ", ")
		}
	}
	return met, open
}

// check returns the selected instances that have the state, and the others with their states.
func (w *waitFor) check(snap *instance.Snapshot) (met []instance.Key, missing []string) {
	state := map[instance.Key]string{}
	for _, in := range w.sel.Filter(snap).All() {
		if in.View != instance.Pending && (w.role == "" || in.Role == w.role) && (w.named == nil || slices.Contains(w.named, in.Key)) {
			state[in.Key] = in.Status()
			if w.state == drained && in.Intent == instance.Drain {
				state[in.Key] = drained
			}
		}
	}
	keys := slices.Clone(w.named)
	if keys == nil {
		for _, in := range snap.All() {
			if _, ok := state[in.Key]; ok && !slices.Contains(keys, in.Key) {
				keys = append(keys, in.Key)
			}
		}
	}
	for _, k := range keys {
		is, ok := state[k]
		switch {
		case slices.Contains(w.left, k):
			is = drained
		case !ok:
			is = "not registered"
		}
		if is == w.state || !ok && w.state == string(instance.Removed) {
			met = append(met, k)
		} else {
			missing = append(missing, k.String()+" "+is)
		}
	}
	return met, missing
}

func (w *waitFor) print(s *session.Session, met []instance.Key, revision int64) error {
	names := make([]string, 0, len(met))
	for _, k := range met {
		names = append(names, k.String())
	}
	suffix := ": " + w.state
	switch {
	case s.Out.Structured():
		return s.Out.Write(map[string]any{"state": w.state, "instances": names, "revision": revision})
	case s.Out.Format == output.Name:
		suffix = ""
	case len(names) == 0:
		return s.Out.Println("no instance is left")
	}
	for _, name := range names {
		s.Out.Printf("%s%s\n", name, suffix)
	}
	return nil
}
