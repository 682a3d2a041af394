package top

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/figures"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

// A frame is the state of the fleet at one time. It is the JSON form of top. Figures that are not
// known are nil.
type frame struct {
	At       time.Time `json:"at"`
	Revision int64     `json:"revision"`
	// Seconds is the time over which rates, latencies and hit rates are computed; 0: since the
	// proxies started.
	Seconds   float64  `json:"window_seconds"`
	Rate      *float64 `json:"requests_per_second,omitempty"`
	Failed    *float64 `json:"failed_per_second,omitempty"`
	TTFT      *float64 `json:"ttft_p50_seconds,omitempty"`
	TTFT95    *float64 `json:"ttft_p95_seconds,omitempty"`
	Instances []*row   `json:"instances"`
	Proxies   []proxy  `json:"proxies"`
	// Queues has the queues of the proxies with metrics, summed by model.
	Queues []instance.ListedQueue `json:"queues,omitempty"`

	all   []*row // Instances, and those that the selector does not match
	usual string // connector of records without one
}

// row is one instance, as pdctl list shows it, with its figures.
type row struct {
	instance.Listing
	Serves   bool     `json:"serves"` // it gets new requests
	Waiting  *float64 `json:"waiting_tokens,omitempty"`
	Usage    *float64 `json:"kv_cache_usage,omitempty"`
	HitRate  *float64 `json:"cache_hit_rate,omitempty"`
	Requests *float64 `json:"requests,omitempty"` // for which it was picked
	TTFT     *float64 `json:"ttft_p50_seconds,omitempty"`
	PerToken *float64 `json:"time_per_token_p50_seconds,omitempty"`
}

func (r *row) key() instance.Key { return instance.Key{Role: r.Role, Address: r.Address} }

// member reports whether the instance counts among those of its role.
func (r *row) member() bool {
	return r.View != instance.Pending && r.View != instance.Elsewhere && r.Intent != instance.Removed
}

// proxy is one proxy. Source is where its figures are from: metrics, digest (only load), or none.
type proxy struct {
	ID         string `json:"id"`
	Address    string `json:"address,omitempty"`
	Version    string `json:"version,omitempty"`
	Behind     bool   `json:"behind,omitempty"` // it has not applied the newest change
	Source     string `json:"source"`
	Error      string `json:"error,omitempty"` // why it has no metrics
	InFlight   *int64 `json:"in_flight,omitempty"`
	NotServing string `json:"not_serving,omitempty"`
}

// collector reads frames. It keeps the metrics of the last minute.
type collector struct {
	s      *session.Session
	conn   *session.Conn
	client *http.Client

	mu      sync.Mutex // held while a frame is read; guards history
	history figures.History
}

func (c *collector) collect(ctx context.Context) (*frame, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	reader := c.conn.Store.Reader
	snap, err := reader.Snapshot(ctx)
	if err != nil {
		return nil, c.s.Hint(err)
	}
	reports, err := reader.Reports(ctx, nil)
	if err != nil {
		return nil, c.s.Hint(err)
	}
	instances, documents, err := reader.Newest(ctx)
	if err != nil {
		return nil, c.s.Hint(err)
	}
	var targets []figures.Target
	for i := range reports.Proxies {
		u, err := reports.Proxies[i].BaseURL()
		targets = append(targets, figures.Target{ID: reports.Proxies[i].ID, URL: u, Err: err})
	}
	samples, failed := figures.Read(ctx, c.client, c.s.Timeout, targets)
	c.history.Add(samples)
	fleet := c.history.Fleet()
	lost := []string{"unavailable", "upstream_error", "broken"}
	all := figures.Series{Name: figures.FirstToken}
	f := &frame{
		At: time.Now().UTC(), Revision: snap.Revision, Seconds: fleet.Seconds, Instances: []*row{}, Proxies: []proxy{},
		Rate: fleet.Rate(figures.Requests, append(lost, "ok", "client_error", "client_gone")...), Failed: fleet.Rate(figures.Requests, lost...),
		TTFT: fleet.Quantile(.5, all), TTFT95: fleet.Quantile(.95, all), Queues: fleet.Queues,
		usual: session.DefaultConnector(reports.Proxies),
	}
	loads := map[string]*loaddigest.ProxyLoad{}
	for _, l := range reports.Loads {
		if l.Ignored == "" {
			loads[l.ID] = l
		}
	}
	for i := range reports.Proxies {
		p := &reports.Proxies[i]
		one := proxy{ID: p.ID, Address: p.Address, Version: p.Version, Behind: p.Applied < max(instances, documents), NotServing: p.NotServing, Source: "none", Error: failed[p.ID]}
		if l := loads[p.ID]; l != nil {
			one.Source, one.InFlight = "digest", new(int64)
			for _, n := range l.Engines {
				*one.InFlight += n.InFlight
			}
		}
		if samples[p.ID] != nil {
			one.Source = "metrics"
			delete(loads, p.ID)
		}
		f.Proxies = append(f.Proxies, one)
	}
	seen, selected := lease.Seen(snap, reports.Proxies), map[instance.Key]bool{}
	for _, in := range c.s.Selector.Filter(seen).All() {
		selected[in.Key] = true
	}
	for _, in := range seen.All() {
		r := newRow(in, fleet, loads)
		if f.all = append(f.all, r); selected[in.Key] {
			f.Instances = append(f.Instances, r)
		}
	}
	return f, nil
}

// newRow returns the row of an instance. loads are the digests of the proxies without metrics.
func newRow(in *instance.Instance, fleet *figures.Fleet, loads map[string]*loaddigest.ProxyLoad) *row {
	r := &row{Listing: in.List()}
	if r.View == instance.Pending {
		return r
	}
	r.Weight, r.Serves = new(in.Weight()), in.Usable() && (r.View == "" || r.View == instance.Orphan)
	inFlight, waiting := fleet.Gauge(figures.Of(figures.InFlight, in.Key)), fleet.Gauge(figures.Of(figures.Waiting, in.Key))
	for _, p := range loads {
		n := p.Load[in.Key.String()]
		inFlight, waiting = plus(inFlight, n.InFlight), plus(waiting, n.Waiting)
	}
	if r.Waiting = waiting; inFlight != nil {
		r.InFlight = new(int64(*inFlight))
	}
	r.Requests = fleet.Counter(figures.Of(figures.Picks, in.Key))
	r.Usage = fleet.Gauge(figures.Of(figures.Usage, in.Key))
	r.TTFT, r.PerToken = fleet.Quantile(.5, figures.Of(figures.First, in.Key)), fleet.Quantile(.5, figures.Of(figures.PerToken, in.Key))
	if in.Role == instance.Prefill {
		r.HitRate = fleet.HitRate(in.Address)
	}
	return r
}

func plus(sum *float64, n int64) *float64 {
	v := float64(n)
	if sum != nil {
		v += *sum
	}
	return &v
}

// column is a column of the table of instances: its head, its name for --sort-by, and either a
// text or a figure with its format.
type column struct {
	head, sort string
	text       func(*row) string
	figure     func(*row) *float64
	format     func(float64) string
}

func columns() []column {
	whole := func(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) }
	percent := func(v float64) string { return whole(v*100) + " %" }
	number := func(v *int64) *float64 {
		if v == nil {
			return nil
		}
		return plus(nil, *v)
	}
	return []column{
		{head: "ROLE", text: func(r *row) string { return string(r.Role) }},
		{head: "ADDRESS", sort: "address", text: func(r *row) string { return instance.Printable(r.Address, 0) }},
		{head: "STATE", sort: "state", text: func(r *row) string { return r.Status }},
		{head: "IN FLIGHT", sort: "in-flight", figure: func(r *row) *float64 { return number(r.InFlight) }, format: whole},
		{head: "WAITING", sort: "waiting", figure: func(r *row) *float64 { return r.Waiting }, format: whole},
		{head: "KV", sort: "kv", figure: func(r *row) *float64 { return r.Usage }, format: percent},
		{head: "HITS", sort: "hits", figure: func(r *row) *float64 { return r.HitRate }, format: percent},
		{head: "TTFT", sort: "ttft", figure: func(r *row) *float64 { return r.TTFT }, format: seconds},
		{head: "PER TOKEN", sort: "per-token", figure: func(r *row) *float64 { return r.PerToken }, format: seconds},
		{head: "REQS", sort: "requests", figure: func(r *row) *float64 { return r.Requests }, format: whole},
		{head: "WEIGHT", text: func(r *row) string { return output.Weight(r.Weight) }},
		{head: "REASON", text: func(r *row) string { return output.Shown(cmp.Or(r.Reason, r.Cause)) }},
	}
}

func seconds(v float64) string {
	switch {
	case v < .01:
		return fmt.Sprintf("%.1f ms", v*1e3)
	case v < 1:
		return fmt.Sprintf("%.0f ms", v*1e3)
	}
	return fmt.Sprintf("%.2f s", v)
}

// shown formats a figure, "-" if it is not known.
func shown(v *float64, format func(float64) string) string {
	if v == nil {
		return "-"
	}
	return format(*v)
}

// sorts returns the values of --sort-by.
func sorts() (names []string) {
	for _, c := range columns() {
		if c.sort != "" {
			names = append(names, c.sort)
		}
	}
	return names
}

// arrange returns the rows that contain a text, prefill first, in the order of a column: texts
// ascending, figures descending.
func (f *frame) arrange(by string, reverse bool, words string) []*row {
	all := columns()
	rows := slices.DeleteFunc(slices.Clone(f.Instances), func(r *row) bool {
		return !strings.Contains(strings.ToLower(fmt.Sprintln(r.key(), r.Status, r.Reason, r.Models)), strings.ToLower(words))
	})
	c := all[slices.IndexFunc(all, func(c column) bool { return c.sort == by })]
	value := func(r *row) float64 {
		if v := c.figure(r); v != nil {
			return -*v
		}
		return 1
	}
	slices.SortStableFunc(rows, func(a, b *row) int {
		n := 0
		if c.figure != nil {
			n = cmp.Compare(value(a), value(b))
		} else {
			n = strings.Compare(c.text(a), c.text(b))
		}
		if reverse {
			n = -n
		}
		return cmp.Or(-cmp.Compare(a.Role, b.Role), n, cmp.Compare(a.Address, b.Address))
	})
	return rows
}

// instanceLines returns the header of the table of instances, and the line of each row.
func instanceLines(rows []*row) []string {
	var head table.Row
	var configs []table.ColumnConfig
	for i, c := range columns() {
		head = append(head, c.head)
		if c.figure != nil {
			configs = append(configs, table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignRight})
		}
	}
	t := output.NewTable(head...)
	t.SetColumnConfigs(configs)
	for _, r := range rows {
		var cells table.Row
		for _, c := range columns() {
			if c.figure != nil {
				cells = append(cells, shown(c.figure(r), c.format))
			} else {
				cells = append(cells, c.text(r))
			}
		}
		t.AppendRow(cells)
	}
	return strings.Split(t.Render(), "\n")
}

// head returns the lines above the instances: figures of the fleet, the proxies, and the queues.
func (f *frame) head() []string {
	rate := func(v float64) string { return fmt.Sprintf("%.1f", v) }
	parts := []string{f.At.Format("15:04:05 MST"), fmt.Sprintf("revision %d", f.Revision)}
	for _, role := range instance.Roles() {
		serving, all := f.count(role)
		parts = append(parts, fmt.Sprintf("%s %d/%d serving", role, serving, all))
	}
	parts = append(parts, shown(f.Rate, rate)+" req/s", shown(f.Failed, rate)+" failed/s", "TTFT "+shown(f.TTFT, seconds)+", p95 "+shown(f.TTFT95, seconds))
	t := output.NewTable("PROXY", "VERSION", "STATE", "IN FLIGHT", "FIGURES")
	for _, p := range f.Proxies {
		state, inFlight := "serving", "-"
		switch {
		case p.NotServing != "":
			state = "not serving"
		case p.Behind:
			state = "behind"
		}
		if p.InFlight != nil {
			inFlight = strconv.FormatInt(*p.InFlight, 10)
		}
		t.AppendRow(table.Row{cmp.Or(p.Address, p.ID), cmp.Or(p.Version, "-"), state, inFlight, strings.TrimSuffix(p.Source+": "+p.Error, ": ")})
	}
	lines := []string{strings.Join(parts, "  ")}
	counts := func(of map[string]int) (out string) {
		for _, name := range slices.Sorted(maps.Keys(of)) {
			out += fmt.Sprintf(" %s %d", cmp.Or(instance.Printable(name, 40), "(no name)"), of[name])
		}
		return cmp.Or(out, " none")
	}
	for _, q := range f.Queues {
		lines = append(lines, fmt.Sprintf("queue of %s (%s):%s; by key:%s; oldest %s", instance.Printable(q.Model, 80), q.Mode, counts(q.Waiting), counts(q.Keys), seconds(q.Oldest)))
	}
	return append(append(lines, ""), strings.Split(t.Render(), "\n")...)
}

// count returns the number of instances of a role that serve, and of all.
func (f *frame) count(role instance.Role) (serving, all int) {
	for _, r := range f.all {
		if r.Role == role && r.member() {
			if all++; r.Serves {
				serving++
			}
		}
	}
	return serving, all
}

// period describes the time that the figures cover.
func (f *frame) period() string {
	if f.Seconds == 0 {
		return "Requests, latencies and hit rates since the proxies started."
	}
	return fmt.Sprintf("Requests, latencies and hit rates of the last %.0f s.", f.Seconds)
}
