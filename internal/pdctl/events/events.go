// Package events implements pdctl events, which prints the KV events of an engine.
package events

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvevents"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvfollow"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const eventsHelp = `events prints the KV events that an engine publishes, until Ctrl-C:

  Listening for KV cache events on topic: kv-events
  Received event batch at 1789095808.8:
    - BlockStored(block_hashes=[15760518052499183552], parent_block_hash=None, ...)

The subscriber of vLLM's example prints the same. pdctl reads the address
from the engine (GET /kv_event_sources, vLLM 0.31 and later) or from its record. With
several data-parallel ranks each line names its rank. If the engine has a
replay_endpoint, pdctl requests missed batches.

The engine needs this flag, on a port that no other engine of its host uses:
  --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","topic":"kv-events"}'`

type eventsFlags struct {
	count, rank int
	past        bool
}

// Command returns the command events.
func Command(s *session.Session) *cobra.Command {
	f := eventsFlags{}
	cmd := &cobra.Command{
		Use: "events [ROLE/]HOST:PORT", Short: "print the KV events of an engine", Long: eventsHelp,
		Example: "  pdctl events prefill 10.0.0.7:8100\n  pdctl events prefill 10.0.0.7:8100 --past --count 1",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := s.One(cmd.Context(), args)
			switch {
			case err != nil:
				return err
			case s.Out.Format != output.Table:
				return s.Out.TextOnly("events are text only")
			case f.count < 0:
				return cli.Wrongf("--count %d: must be 0, for no limit, or more", f.count)
			}
			return follow(cmd.Context(), s, k, f)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.IntVar(&f.count, "count", 0, "exit after this many batches; 0: never")
	fs.IntVar(&f.rank, "rank", -1, "only this data-parallel rank; -1: all")
	fs.BoolVar(&f.past, "past", false, "start with the batches that the engine still has")
	return cmd
}

func follow(ctx context.Context, s *session.Session, k instance.Key, f eventsFlags) error {
	publishers, err := findPublishers(ctx, s, k)
	if err != nil {
		return err
	}
	if _, ok := publishers[f.rank]; f.rank >= 0 && !ok {
		return fmt.Errorf("%s publishes no events of rank %d; ranks that it publishes: %v", k, f.rank, slices.Sorted(maps.Keys(publishers)))
	}
	if f.rank >= 0 {
		publishers = map[int]kvevents.Publisher{f.rank: publishers[f.rank]}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &eventsPrinter{out: &s.Out, left: f.count, end: cancel}
	var work sync.WaitGroup
	for _, rank := range slices.Sorted(maps.Keys(publishers)) {
		of := ""
		if len(publishers) > 1 {
			of = fmt.Sprintf(" (rank %d)", rank)
		}
		tail := t.tail(publishers[rank], of)
		tail.Past = f.past
		work.Go(func() { tail.Run(ctx) })
	}
	work.Wait()
	return t.err
}

// findPublishers returns the addresses at which the ranks of an instance publish.
func findPublishers(ctx context.Context, s *session.Session, k instance.Key) (map[int]kvevents.Publisher, error) {
	conn, err := s.Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	in, err := record(ctx, conn, k)
	if err != nil {
		return nil, s.Hint(err)
	}
	client := &http.Client{
		Timeout: s.Timeout, Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	publishers, hints, err := kvfollow.Find(ctx, kvfollow.Sources(client), in)
	for _, rank := range slices.Sorted(maps.Keys(hints)) {
		fmt.Fprintln(s.Out.Stderr, hints[rank])
	}
	switch {
	case len(publishers) > 0:
		return publishers, nil
	case err != nil:
		return nil, fmt.Errorf("cannot find out where %s publishes KV events: its record has no address, and the query failed: %w", k, err)
	}
	return nil, fmt.Errorf("%s publishes no KV events, according to the engine and its record: start the engine with --kv-events-config; see pdctl events --help", k)
}

// record reads the record of an instance.
func record(ctx context.Context, conn *session.Conn, k instance.Key) (*instance.Instance, error) {
	snap, err := conn.Store.Reader.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	in, ok := snap.Lookup(k)
	switch {
	case !ok:
		return nil, fmt.Errorf("no instance %s below %s; see pdctl list", k, conn.Layout.Root())
	case in.View == instance.Rejected:
		return nil, fmt.Errorf("%s: %s", k, in.Reason)
	}
	return in, nil
}

// eventsPrinter prints the batches of all ranks in the order of their arrival.
type eventsPrinter struct {
	out *output.Printer
	end context.CancelFunc

	mu    sync.Mutex // guards the fields below, and the output
	left  int        // batches until the end; 0: no end
	ended bool
	err   error
}

func (t *eventsPrinter) tail(p kvevents.Publisher, of string) *kvevents.Tail {
	out := func(format string, args ...any) func() {
		return func() { fmt.Fprintf(t.out.Stdout, format, args...) }
	}
	return &kvevents.Tail{
		Publisher: p,
		Ready: func() {
			t.print(out("Listening for KV cache events on topic: %s%s\n", instance.Printable(p.Topic, 80), of))
		},
		Missed: func(missed, last, current uint64) {
			t.print(out("Missed %d messages (last: %d, current: %d)%s\n", missed, last, current, of))
		},
		Backwards: func(last, current uint64) {
			t.print(out("The engine has started again (last: %d, current: %d)%s\n", last, current, of))
		},
		Batch: func(_ uint64, payload []byte) { t.batch(payload, of) },
		Lost: func(err error, again time.Duration) {
			t.print(func() {
				text := fmt.Sprintf("%s%s: %s", p.Endpoint, of, instance.Printable(err.Error(), 200))
				if again > 0 {
					text += "; trying again in " + again.String()
				}
				fmt.Fprintln(t.out.Stderr, text)
			})
		},
	}
}

func (t *eventsPrinter) print(what func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		what()
	}
}

func (t *eventsPrinter) batch(payload []byte, of string) {
	text, err := kvevents.Text(payload, of)
	t.print(func() {
		if err != nil {
			fmt.Fprintf(t.out.Stderr, "A batch that cannot be read%s: %s\n", of, strings.TrimSpace(instance.Printable(err.Error(), 200)))
			return
		}
		if _, t.err = fmt.Fprint(t.out.Stdout, text); t.err != nil || t.left == 1 {
			t.ended = true
			t.end()
		}
		t.left--
	})
}
