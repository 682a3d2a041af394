package replay

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/mattn/go-isatty"

	"github.com/pdmesh/pdmesh/sim/loadgen"
)

// report prints the closing tables.
func (t *tally) report(w io.Writer, o options, lag loadgen.Lag, engines []engine) {
	seconds := max(t.took.Seconds(), 1e-9)
	fmt.Fprintln(w)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "requests\t%s sent of %s: %s correct, %s wrong, %s failed\n",
		thousands(t.sent.Load()), thousands(t.total), thousands(t.correct.Load()), thousands(t.wrong.Load()), thousands(t.failed.Load()))
	fmt.Fprintf(tw, "retried\t%s answers after more than one attempt\n", thousands(t.retried.Load()))
	fmt.Fprintf(tw, "time\t%s at %g times the recorded speed; sent at most %s late (%s requests by more than 100 ms)\n",
		round(t.took), o.speed, round(lag.Max), thousands(lag.Late))
	fmt.Fprintf(tw, "tokens\t%s in prompts, %s generated: %s generated tokens/s, %.1f requests/s\n",
		thousands(t.promptTokens.Load()), thousands(t.outputTokens.Load()),
		thousands(int64(float64(t.outputTokens.Load())/seconds)), float64(t.correct.Load())/seconds)
	tw.Flush()

	fmt.Fprintln(w)
	tw = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\tp50\tp90\tp99\tmax\t")
	row := func(name string, h *loadgen.Histogram) {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t\n", name, round(h.Quantile(.5)), round(h.Quantile(.9)), round(h.Quantile(.99)), round(h.Max()))
	}
	row("time to first token", &t.ttft)
	row("between tokens", &t.itl)
	row("end to end", &t.whole)
	tw.Flush()

	fmt.Fprintln(w)
	tw = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "instance\taddress\tanswers\tshare\trequests\taborted\tKV transfers\trecomputed prompts")
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range engines {
		role, c := string(e.node.Spec.Role), e.counters
		n := t.share[role+" "+e.node.Address]
		share := 0.0
		if correct := t.correct.Load(); correct > 0 {
			share = 100 * float64(n) / float64(correct)
		}
		transfers := c.TransfersMade
		if role == "decode" {
			transfers = c.TransfersLoaded
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%.1f %%\t%s\t%s\t%s\t%s\n", e.node.Spec.Name, e.node.Address, thousands(n), share,
			thousands(c.Requests), thousands(c.Aborted), thousands(transfers), thousands(c.LocalPrefills))
	}
	tw.Flush()
	for _, c := range t.failures {
		fmt.Fprintln(w, c)
	}
	if more := t.wrong.Load() + t.failed.Load() - int64(len(t.failures)); more > 0 {
		fmt.Fprintf(w, "... and %s more\n", thousands(more))
	}
}

// startProgress prints the state of the replay until stop is called: on a terminal one line
// that is updated every second, otherwise a line every ten seconds.
func startProgress(w io.Writer, t *tally) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var printing sync.WaitGroup
	every, begin, end := 10*time.Second, "", "\n"
	if file, ok := w.(*os.File); ok && isatty.IsTerminal(file.Fd()) {
		every, begin, end = time.Second, "\r", "\x1b[K"
	}
	start := time.Now()
	printing.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		var before int64
		for {
			select {
			case <-ctx.Done():
				if begin != "" {
					fmt.Fprint(w, "\r\x1b[K")
				}
				return
			case <-tick.C:
			}
			tokens := int64(t.itl.Count()) // one interval for every token except the first of an answer
			fmt.Fprintf(w, "%s%6s  %s of %s sent, %s answered, %s wrong or failed, %s tokens/s%s", begin, round(time.Since(start)),
				thousands(t.sent.Load()), thousands(t.total), thousands(t.correct.Load()), thousands(t.wrong.Load()+t.failed.Load()),
				thousands(int64(float64(tokens-before)/every.Seconds())), end)
			before = tokens
		}
	})
	return func() { cancel(); printing.Wait() }
}

// round rounds a duration to about three significant digits.
func round(d time.Duration) time.Duration {
	unit := 10 * time.Microsecond
	for unit < time.Second && d >= 1000*unit {
		unit *= 10
	}
	return d.Round(unit)
}

// thousands formats 12031 as 12,031.
func thousands[T int | int64](n T) string { return humanize.Comma(int64(n)) }
