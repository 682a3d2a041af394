package doctor

import (
	"regexp"
	"slices"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// unnotified matches the notices of proxies about a prefill instance whose notifications do
// not arrive (package notice), with its address and the one at which they are expected.
var unnotified = regexp.MustCompile(`^prefill (\S+) is bypassed: its LMCache notifications do not arrive; they are expected at (.+)$`)

// notifications reports prefill instances whose notifications do not arrive at proxies.
func (x Proxies) notifications(r *report) {
	texts, by := x.reporters(func(p *Proxy) []string { return p.Notices }, unnotified.MatchString)
	for _, text := range texts {
		slices.Sort(by[text])
		m := unnotified.FindStringSubmatch(text)
		k := instance.Key{Role: instance.Prefill, Address: m[1]}
		r.add(Finding{
			Severity: Warning, Subject: k.String(), What: "its LMCache notifications do not arrive: requests bypass it",
			Why: "they are expected at " + m[2] + "; reported by " + instance.Some(by[text]),
			Cure: "set pd_proxy_host and pd_proxy_port in the engine's LMCache configuration to that address, leave pd_skip_proxy_notification off, " +
				"and restart the engine; a firewall must let the port through (docs/connectors/lmcache.md)",
			Commands: []string{r.pdctl("get", k.String())},
		})
	}
}
