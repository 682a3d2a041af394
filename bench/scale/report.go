package scale

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/sim/loadgen"
)

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
