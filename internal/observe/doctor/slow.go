package doctor

import (
	"fmt"
	"slices"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// slower is the ratio to the time of its peers from which an instance is reported. leastSamples is the
// minimum number of requests for a comparison, because the first one after the start of an engine may
// take long.
const slower, leastSamples = 3, 10

// slow reports the usable instances that take much longer than at least two others of their role and
// model. Both the time per request and the time per unit of work must be longer: an instance with longer
// prompts or with more streams than others is not slow.
func (m *Members) slow(r *report) {
	all := slices.DeleteFunc(m.all(), func(in *instance.Instance) bool { return !in.Usable() || m.Paces[in.Key].Samples < leastSamples })
	for _, in := range all {
		var means, each []float64 // of its peers
		for _, peer := range all {
			if p := m.Paces[peer.Key]; peer != in && peer.Role == in.Role && slices.Equal(peer.Record.Models, in.Record.Models) {
				means, each = append(means, p.Seconds/p.Samples), append(each, p.Seconds/max(p.Work, 1))
			}
		}
		if len(means) < 2 {
			continue
		}
		slices.Sort(means)
		slices.Sort(each)
		own, usual, usualEach := m.Paces[in.Key], means[len(means)/2], each[len(each)/2]
		took, tookEach, what, sort := own.Seconds/own.Samples, own.Seconds/max(own.Work, 1), "a token", "per-token"
		if took < slower*usual || tookEach < slower*usualEach {
			continue
		}
		if in.Role == instance.Prefill {
			took, usual, what, sort = tookEach, usualEach, "a token of the prompt", "ttft"
		}
		weight := fmt.Sprint(max(1, int(float64(in.Weight())*usual/took)))
		r.add(Finding{
			Severity: Warning, Subject: in.Key.String(), What: fmt.Sprintf("it is %.1f times slower than its peers: %.3g ms for %s, theirs is %.3g ms", took/usual, took*1e3, what, usual*1e3),
			Why:      fmt.Sprintf("measured by the proxies over about the last %.0f requests there, and compared with the median of %d other %s instances of this model", own.Samples, len(means), in.Role),
			Cure:     "compare its engine with that of a peer: its log and settings, other programs on the GPU, its clocks and temperature (nvidia-smi); send it fewer requests until you have found the cause",
			Commands: []string{r.pdctl("top", "--once", "--sort-by", sort, "--selector", "role="+string(in.Role)), r.pdctl("weight", string(in.Role), in.Address, weight)},
		})
	}
}
