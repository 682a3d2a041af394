package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/bench/engine"
	"github.com/pdmesh/pdmesh/bench/load"
	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/bench/plot"
	"github.com/pdmesh/pdmesh/bench/target"
)

// Options is what to do.
type Options struct {
	Duration time.Duration
	// Rate in requests per second; 0 is half of the peak, which is measured.
	Rate float64
	// Leave is the share of clients that leave at a random point.
	Leave float64
	// Every is how often the membership changes.
	Every time.Duration
	// Sample is how often the process is looked at.
	Sample time.Duration
	// MaxSlope is how much memory may grow, in KiB per minute.
	MaxSlope float64
	Spec     target.Spec
	Engines  []string // eight addresses
	Seed     uint64
	Progress io.Writer
}

// Sample is one look at the proxy's process.
type Sample struct {
	At         float64 `json:"at_seconds"`
	RSS        int64   `json:"rss_kib"`
	Goroutines int64   `json:"goroutines"`
	Files      int     `json:"files"`
	Sockets    int     `json:"sockets"`
	Right      uint64  `json:"right"`
}

// Result is what a soak found.
type Result struct {
	Commit   string        `json:"commit"`
	Machine  machine.Facts `json:"machine"`
	Seconds  float64       `json:"seconds"`
	Peak     float64       `json:"peak_per_second,omitempty"`
	Rate     float64       `json:"rate_per_second"`
	Right    uint64        `json:"right"`
	Wrong    uint64        `json:"wrong"`
	Broken   uint64        `json:"broken"`
	Failed   uint64        `json:"failed"`
	Left     uint64        `json:"left"`
	Problems []string      `json:"problems,omitempty"`
	Changes  int           `json:"membership_changes"`
	// The slopes per minute over the last two thirds, by least squares.
	RSSSlope       float64  `json:"rss_kib_per_minute"`
	GoroutineSlope float64  `json:"goroutines_per_minute"`
	SocketSlope    float64  `json:"sockets_per_minute"`
	Samples        []Sample `json:"samples"`
}

// ErrSoak is wrapped by what a soak was run to find.
var ErrSoak = errors.New("the soak failed")

// conns bounds the requests under way.
const conns = 256

func shape() answer.Shape { return answer.Shape{Prompt: 2 << 10, Tokens: 64, Stream: true} }

// Run soaks. A result comes with ErrSoak too.
func Run(ctx context.Context, lab *target.Lab, o Options) (*Result, error) {
	e, err := engine.Start(ctx, engine.Options{Listen: o.Engines})
	if err != nil {
		return nil, err
	}
	defer e.Close()
	etcd, err := lab.StartEtcd(ctx)
	if err != nil {
		return nil, err
	}
	defer etcd.Close()
	half := len(o.Engines) / 2
	site := target.Site{Prefill: o.Engines[:half], Decode: o.Engines[half:], Connector: "nixl", Etcd: etcd.Endpoint, Prefix: "/soak"}
	members, err := etcd.Register(ctx, site.Prefix, site.Connector, site.Prefill, site.Decode)
	if err != nil {
		return nil, err
	}
	p, err := lab.Start(ctx, o.Spec, site)
	if err != nil {
		return nil, err
	}
	defer p.Stop()
	memberCtx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- members.Run(memberCtx, 1/o.Every.Seconds(), o.Seed) }()

	r := &Result{Machine: machine.Describe(), Rate: o.Rate}
	if r.Rate == 0 {
		if r.Peak, err = peak(ctx, p.Address); err == nil {
			r.Rate = r.Peak / 2
			fmt.Fprintf(o.Progress, "peak %.0f requests/s, soaking at half of it\n", r.Peak)
		}
	}
	if err == nil {
		err = r.soak(ctx, p, o)
	}
	stop()
	err = errors.Join(err, <-done)
	r.Changes = members.Changes
	if err != nil {
		return r, err
	}
	return r, r.verdict(o)
}

// peak is what a closed loop gets through in a few seconds.
func peak(ctx context.Context, addr string) (float64, error) {
	g, err := load.Start(ctx, load.Plan{Addresses: []string{addr}, Shape: shape(), Conns: 32})
	if err != nil {
		return 0, err
	}
	defer g.Stop(time.Second)
	wait(ctx, time.Second)
	g.Swap(new(load.Tally))
	start := time.Now()
	wait(ctx, 4*time.Second)
	t := g.Swap(new(load.Tally))
	if t.Right.Load() == 0 {
		return 0, fmt.Errorf("%w: no request was answered: %q", ErrSoak, t.Problems())
	}
	return float64(t.Right.Load()) / time.Since(start).Seconds(), nil
}

// maxLog is how long the proxy's log may become: its disk is not soaked.
const maxLog = 256 << 20

func (r *Result) soak(ctx context.Context, p *target.Running, o Options) error {
	g, err := load.Start(ctx, load.Plan{
		Addresses: []string{p.Address}, Shape: shape(), Conns: conns, Rate: r.Rate, Seed: o.Seed, Leave: o.Leave,
	})
	if err != nil {
		return err
	}
	defer g.Stop(0)
	tally := g.Tally()
	start := time.Now()
	for time.Since(start) < o.Duration && ctx.Err() == nil && p.Alive() {
		wait(ctx, min(o.Sample, max(o.Duration-time.Since(start), time.Millisecond)))
		s, err := look(ctx, p)
		if err != nil {
			r.Problems = append(r.Problems, err.Error())
			continue
		}
		s.At, s.Right = time.Since(start).Seconds(), tally.Right.Load()
		r.Samples = append(r.Samples, s)
		fmt.Fprintf(o.Progress, "%6.0f s  %6.1f MiB  %5d goroutines  %4d sockets  %v\n", s.At, float64(s.RSS)/1024, s.Goroutines, s.Sockets, tally)
		if info, err := os.Stat(p.Log); err == nil && info.Size() > maxLog {
			if err := os.Truncate(p.Log, 0); err != nil { // it is appended to
				return err
			}
		}
	}
	r.Seconds = time.Since(start).Seconds()
	cut := g.Stop(10 * time.Second)
	r.Right, r.Wrong, r.Broken, r.Left = tally.Right.Load(), tally.Wrong.Load(), tally.Broken.Load(), tally.Left.Load()
	r.Failed = tally.Failed.Load() + uint64(max(cut, 0))
	r.Problems = append(r.Problems, tally.Problems()...)
	if !p.Alive() {
		return fmt.Errorf("%w: the proxy ended: %s", ErrSoak, p.Tail())
	}
	return ctx.Err()
}

func look(ctx context.Context, p *target.Running) (Sample, error) {
	u, err := machine.Read(p.PIDs())
	if err != nil {
		return Sample{}, err
	}
	s := Sample{RSS: u.RSS, Files: u.Files, Sockets: u.Sockets}
	s.Goroutines, err = goroutines(ctx, "http://"+p.Admin+"/metrics")
	return s, err
}

// goroutines reads go_goroutines; -1 if the proxy does not tell.
func goroutines(ctx context.Context, url string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if v, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			n, err := strconv.ParseFloat(v, 64)
			return int64(n), err
		}
	}
	return -1, lines.Err()
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// verdict computes the slopes and judges.
func (r *Result) verdict(o Options) error {
	at := r.settled()
	r.RSSSlope = slope(at, func(s Sample) float64 { return float64(s.RSS) })
	r.GoroutineSlope = slope(at, func(s Sample) float64 { return float64(s.Goroutines) })
	r.SocketSlope = slope(at, func(s Sample) float64 { return float64(s.Sockets) })
	var errs []error
	if bad := r.Wrong + r.Broken + r.Failed; bad > 0 {
		errs = append(errs, fmt.Errorf("%w: %d wrong, %d broken, %d failed: %q", ErrSoak, r.Wrong, r.Broken, r.Failed, r.Problems))
	}
	if r.Right == 0 {
		errs = append(errs, fmt.Errorf("%w: nothing was answered", ErrSoak))
	}
	const perMinute = 1 // of goroutines and sockets
	if r.RSSSlope > o.MaxSlope || r.GoroutineSlope > perMinute || r.SocketSlope > perMinute {
		errs = append(errs, fmt.Errorf("%w: per minute it grows by %.1f KiB (at most %.1f), %.2f goroutines, %.2f sockets (at most %d)", ErrSoak,
			r.RSSSlope, o.MaxSlope, r.GoroutineSlope, r.SocketSlope, perMinute))
	}
	return errors.Join(errs...)
}

// settled are the samples of the last two thirds.
func (r *Result) settled() []Sample { return r.Samples[len(r.Samples)/3:] }

// slope is that of the line of least squares, per minute.
func slope(samples []Sample, y func(Sample) float64) float64 {
	n := float64(len(samples))
	if n < 2 {
		return 0
	}
	var sx, sy, sxx, sxy float64
	for _, s := range samples {
		x := s.At / 60
		sx += x
		sy += y(s)
		sxx += x * x
		sxy += x * y(s)
	}
	d := n*sxx - sx*sx
	if d == 0 {
		return 0
	}
	return (n*sxy - sx*sy) / d
}

// Drawings are plots by file name.
func (r *Result) Drawings() map[string]string {
	line := func(title, unit string, y func(Sample) float64) string {
		l := plot.Line{Label: unit}
		for _, s := range r.Samples {
			l.X, l.Y = append(l.X, s.At/60), append(l.Y, y(s))
		}
		return plot.Lines(title, "minutes", unit, []plot.Line{l})
	}
	return map[string]string{
		"soak-memory.svg":     line("Soak: resident memory", "MiB", func(s Sample) float64 { return float64(s.RSS) / 1024 }),
		"soak-goroutines.svg": line("Soak: goroutines", "goroutines", func(s Sample) float64 { return float64(s.Goroutines) }),
		"soak-sockets.svg":    line("Soak: sockets", "sockets", func(s Sample) float64 { return float64(s.Sockets) }),
	}
}

// Write writes the figures.
func (r *Result) Write(path string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("write the soak: %w", err)
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
