// Package figures reads the metrics of proxies over HTTP and adds them up to figures of the fleet.
//
// A History keeps the samples of each proxy for a window, so that latencies and rates are those of
// the window. With one sample of each proxy, they are those since the proxies started.
package figures

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/netguard"
)

// The metrics that a Sample has. docs/reference/metrics.md describes them.
const (
	Requests   = "pd_requests_total"
	Tokens     = "pd_model_tokens_total"
	FirstToken = "pd_time_to_first_token_seconds"
	InFlight   = "pd_instance_in_flight"
	Waiting    = "pd_instance_waiting_tokens"
	Picks      = "pd_instance_picks_total"
	Usage      = "pd_instance_kv_cache_usage"
	usageAge   = "pd_instance_engine_age_seconds"
	Prompts    = "pd_prompt_tokens_total"
	DecodeOnly = "pd_forward_decode_only_total"
	Failures   = "pd_instance_failures_total"
	Between    = "pd_model_time_per_output_token_seconds"
	First      = "pd_instance_time_to_first_token_seconds"
	PerToken   = "pd_instance_time_per_output_token_seconds"

	QueueRefused  = "pd_queue_refused_total"
	RouteRequests = "pd_model_route_requests_total"
	KeyRequests   = "pd_key_requests_total"
	KeyTokens     = "pd_key_tokens_total"
	KeyRefused    = "pd_key_refused_total"
)

// labels returns the labels whose values are in Series.Label, by metric. A Fleet adds up series that
// differ only in other labels, except role and instance.
func labels() map[string][]string {
	return map[string][]string{
		Requests: {"outcome"}, Tokens: {"what"}, Prompts: {"what"}, Failures: {"class"},
		DecodeOnly: nil, Between: nil, FirstToken: nil, InFlight: nil, Waiting: nil, Picks: nil, Usage: nil, usageAge: nil, First: nil, PerToken: nil,
		QueueRefused: {"class", "reason"}, RouteRequests: {"route", "target"}, KeyRequests: {"key"}, KeyTokens: {"key", "what"}, KeyRefused: {"key"},
	}
}

// A Series is one time series of a proxy, or one bucket of a histogram, which counts the values
// above Low and up to High.
type Series struct {
	// Label has the values of its labels, each on a separate line.
	Name, Role, Instance, Label string
	Low, High                   float64

	rest string // other labels of a counter in a Sample, kept apart because a series may end, such as that of a model
}

// Of returns the series of an instance.
func Of(name string, k instance.Key) Series {
	return Series{Name: name, Role: string(k.Role), Instance: k.Address}
}

// A Sample has the metrics of one proxy at one time. Counters without events may be missing.
type Sample struct {
	At               time.Time
	gauges, counters map[Series]float64
	queues           []instance.ListedQueue
}

// A Target is a proxy to read.
type Target struct {
	ID, URL string
	Err     error // why its URL is unknown; nil if it is known
}

const (
	// maxMetrics and maxStatus bound the answers of a proxy: one with 1,000 instances has some 5 MB of
	// metrics, and less in its status.
	maxMetrics, maxStatus = 64 << 20, 16 << 20
	// readers bounds the proxies that are read at the same time.
	readers = 16
)

// NewClient returns a client for Read. It follows no redirects, verifies certificates with the
// system's CAs, and connects without an HTTP proxy to addresses that netguard allows: the URLs are from etcd.
func NewClient() *http.Client {
	dialer := net.Dialer{Control: netguard.New(nil).Control}
	return &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Read reads proxies, each within a time limit. It returns their samples by id, and for those without one
// the printable reason.
func Read(ctx context.Context, c *http.Client, limit time.Duration, proxies []Target) (map[string]*Sample, map[string]string) {
	samples, failed := map[string]*Sample{}, map[string]string{}
	var mu sync.Mutex // guards both
	var g errgroup.Group
	g.SetLimit(readers)
	for _, p := range proxies {
		g.Go(func() error {
			one, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			s, err := read(one, c, p)
			mu.Lock()
			defer mu.Unlock()
			if is, ok := errors.AsType[*url.Error](err); ok {
				err = is.Err // without the URL
			}
			if err != nil {
				failed[p.ID] = instance.Printable(strings.TrimPrefix(p.URL+": "+err.Error(), ": "), 200)
			} else {
				samples[p.ID] = s
			}
			return nil
		})
	}
	_ = g.Wait()
	return samples, failed
}

// read reads /status and /metrics of a proxy. It fails if another proxy answers there.
func read(ctx context.Context, c *http.Client, p Target) (*Sample, error) {
	if p.Err != nil {
		return nil, p.Err
	}
	raw, err := get(ctx, c, p.URL+"/status", maxStatus)
	if err != nil {
		return nil, err
	}
	var status struct {
		ID     string                 `json:"id"`
		Queues []instance.ListedQueue `json:"queues"`
	}
	if json.Unmarshal(raw, &status) != nil || status.ID != p.ID {
		return nil, errors.New("another program answers at this address")
	}
	if raw, err = get(ctx, c, p.URL+"/metrics", maxMetrics); err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(raw)))
	if err != nil {
		return nil, fmt.Errorf("/metrics: %w", err)
	}
	return NewSample(slices.Collect(maps.Values(families)), status.Queues), nil
}

// NewSample returns the sample of a proxy with these metrics and queues.
func NewSample(families []*dto.MetricFamily, queues []instance.ListedQueue) *Sample {
	s := &Sample{At: time.Now(), gauges: map[Series]float64{}, counters: map[Series]float64{}, queues: queues}
	of := labels()
	for _, f := range families {
		if labels, ok := of[f.GetName()]; ok {
			for _, m := range f.GetMetric() {
				s.take(f.GetName(), labels, m)
			}
		}
	}
	return s
}

func get(ctx context.Context, c *http.Client, url string, limit int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: status %d", req.URL.Path, resp.StatusCode)
	}
	return io.ReadAll(io.LimitReader(resp.Body, limit))
}

// take adds one metric to a sample.
func (s *Sample) take(name string, labels []string, m *dto.Metric) {
	one, rest := Series{Name: name}, ""
	for _, l := range m.GetLabel() {
		switch l.GetName() {
		case "role":
			one.Role = l.GetValue()
		case "instance":
			one.Instance = l.GetValue()
		default:
			if slices.Contains(labels, l.GetName()) {
				one.Label = strings.TrimPrefix(one.Label+"\n"+l.GetValue(), "\n")
			} else {
				rest += "\n" + l.GetValue()
			}
		}
	}
	if m.Gauge != nil {
		s.gauges[one] = m.GetGauge().GetValue()
	}
	one.rest = rest
	if m.Counter != nil {
		s.counters[one] += m.GetCounter().GetValue()
	}
	below := uint64(0)
	for _, b := range m.GetHistogram().GetBucket() {
		one.Low, one.High = one.High, b.GetUpperBound()
		if n := b.GetCumulativeCount() - below; n > 0 {
			s.counters[one] += float64(n)
		}
		below = b.GetCumulativeCount()
	}
	if n := m.GetHistogram().GetSampleCount(); n > below { // Gather returns no bucket for +Inf
		one.Low, one.High = one.High, math.Inf(1)
		s.counters[one] += float64(n - below)
	}
}

// A History has the last samples of proxies. It is not safe for concurrent use. The zero value has
// none.
type History struct {
	// Window is the time over which rates and latencies are computed; default a minute.
	Window time.Duration

	of map[string][]*Sample
}

// Add adds the newest samples by proxy, and forgets proxies without one.
func (h *History) Add(samples map[string]*Sample) {
	was, window := h.of, cmp.Or(h.Window, time.Minute)
	h.of = make(map[string][]*Sample, len(samples))
	for id, s := range samples {
		all := was[id]
		if n := len(all); n >= 2 && all[n-1].At.Sub(all[n-2].At) < window/6 { // close samples are not kept
			all = all[:n-1]
		}
		all = append(all, s)
		for len(all) > 2 && s.At.Sub(all[1].At) >= window {
			all = all[1:]
		}
		h.of[id] = all
	}
}

// Fleet has the figures of all proxies of a History together.
type Fleet struct {
	// Seconds is the length of the window; 0: since the proxies started.
	Seconds float64
	// Queues has the queue of each model: requests and bytes of all proxies, the longest waits and
	// highest saturation, and the mode of one of them.
	Queues []instance.ListedQueue

	gauges, counters map[Series]float64
	buckets          map[Series][]bucket // of histograms, the lowest first
}

// bucket is a bucket of a histogram with n values.
type bucket struct{ low, high, n float64 }

// Fleet adds up the figures of all proxies. While some proxies have two samples, those with one
// count only in gauges.
func (h *History) Fleet() *Fleet {
	f := &Fleet{gauges: map[Series]float64{}, counters: map[Series]float64{}, buckets: map[Series][]bucket{}}
	for _, all := range h.of {
		f.Seconds = max(f.Seconds, all[len(all)-1].At.Sub(all[0].At).Seconds())
	}
	youngest := map[Series]float64{} // the age of each engine's report
	for _, all := range h.of {
		last, first := all[len(all)-1], all[0]
		for s, v := range last.gauges {
			if s.Name != Usage {
				f.gauges[s] += v
				continue
			}
			age := last.gauges[Series{Name: usageAge, Role: s.Role, Instance: s.Instance}]
			if is, ok := youngest[s]; !ok || age < is {
				youngest[s], f.gauges[s] = age, v
			}
		}
		for i := range last.queues {
			f.queue(&last.queues[i])
		}
		if f.Seconds > 0 && last == first {
			continue
		}
		for s, v := range last.counters {
			if last != first && v >= first.counters[s] { // less: the proxy has restarted
				v -= first.counters[s]
			}
			s.rest = ""
			f.counters[s] += v
		}
	}
	for s, n := range f.counters {
		if b := (bucket{s.Low, s.High, n}); b.high > 0 && n > 0 {
			s.Low, s.High = 0, 0
			f.buckets[s] = append(f.buckets[s], b)
		}
	}
	for _, all := range f.buckets {
		slices.SortFunc(all, func(a, b bucket) int { return cmp.Compare(a.low, b.low) })
	}
	return f
}

// queue adds the queue of one proxy.
func (f *Fleet) queue(q *instance.ListedQueue) {
	i := slices.IndexFunc(f.Queues, func(is instance.ListedQueue) bool { return is.Model == q.Model })
	if i < 0 {
		i = len(f.Queues)
		f.Queues = append(f.Queues, instance.ListedQueue{Model: q.Model, Mode: q.Mode, Waiting: map[string]int{}, Keys: map[string]int{}, Saturation: map[instance.Role]float64{}})
	}
	f.Queues[i].Merge(q)
}

// Gauge returns the sum of a gauge of all proxies, for Usage the newest; nil if no proxy has it.
func (f *Fleet) Gauge(s Series) *float64 { return valueOf(f.gauges, s) }

// Counter returns the increase of a counter of all proxies; nil if no proxy has it.
func (f *Fleet) Counter(s Series) *float64 { return valueOf(f.counters, s) }

func valueOf(all map[Series]float64, s Series) *float64 {
	if v, ok := all[s]; ok {
		return &v
	}
	return nil
}

// Rate returns the increase per second of the counters of a name with these labels; nil without a
// window.
func (f *Fleet) Rate(name string, labels ...string) *float64 {
	if f.Seconds == 0 {
		return nil
	}
	sum := 0.0
	for _, label := range labels {
		sum += f.counters[Series{Name: name, Label: label}] / f.Seconds
	}
	return &sum
}

// Sum returns the sum of a gauge over all engines. It counts an engine in both roles once, although its
// value is listed with each role.
func (f *Fleet) Sum(name string) (sum float64) {
	for s, v := range f.gauges {
		decode := s
		decode.Role = string(instance.Decode)
		if _, both := f.gauges[decode]; s.Name == name && (s == decode || !both) {
			sum += v
		}
	}
	return sum
}

// Counts returns the increase of a counter by instance and label, without those that are 0.
func (f *Fleet) Counts(name string) map[Series]float64 {
	out := map[Series]float64{}
	for s, v := range f.counters {
		if s.Name == name && v > 0 {
			out[s] = v
		}
	}
	return out
}

// HitRate returns the share of the prompt tokens that a prefill instance had in its cache, from 0
// to 1; nil if there were none.
func (f *Fleet) HitRate(address string) *float64 {
	asked := f.counters[Series{Name: Prompts, Instance: address, Label: "asked"}]
	if asked == 0 {
		return nil
	}
	return new(min(1, f.counters[Series{Name: Prompts, Instance: address, Label: "found"}]/asked))
}

// Quantile returns an estimate of quantile q of a histogram, in seconds; nil if it counts nothing.
func (f *Fleet) Quantile(q float64, s Series) *float64 {
	total, below := 0.0, 0.0
	for _, b := range f.buckets[s] {
		total += b.n
	}
	for _, b := range f.buckets[s] {
		if below += b.n; below < q*total {
			continue
		}
		v := b.low
		if !math.IsInf(b.high, 1) {
			v = b.high - (b.high-b.low)*(below-q*total)/b.n
		}
		return &v
	}
	return nil
}
