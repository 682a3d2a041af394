package doctor

import (
	"cmp"
	"regexp"
	"slices"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// unnotified matches the notices of proxies about a prefill instance whose notifications do
// not arrive (package notice), with its address and the one at which they are expected.
var unnotified = regexp.MustCompile(`^prefill (\S+) is bypassed: its LMCache notifications do not arrive; they are expected at (.+)$`)

// notifications reports prefill instances whose notifications do not arrive at proxies.
func (x Proxies) notifications(r *report) {
	type silent struct{ address, expected string }
	var list []silent
	by := map[silent][]string{}
	for i := range x {
		for _, text := range x[i].Notices {
			if m := unnotified.FindStringSubmatch(text); m != nil {
				s := silent{m[1], m[2]}
				if by[s] == nil {
					list = append(list, s)
				}
				by[s] = append(by[s], cmp.Or(x[i].Address, x[i].ID))
			}
		}
	}
	for _, s := range list {
		slices.Sort(by[s])
		k := instance.Key{Role: instance.Prefill, Address: s.address}
		r.say(Finding{
			Severity: Warning, Subject: k.String(), What: "its LMCache notifications do not arrive: requests bypass it",
			Why: "they are expected at " + s.expected + "; reported by " + some(by[s]),
			Cure: "set pd_proxy_host and pd_proxy_port in the engine's LMCache configuration to that address, leave pd_skip_proxy_notification off, " +
				"and restart the engine; a firewall must let the port through (docs/connectors/lmcache.md)",
			Commands: []string{r.pdctl("get", k.String())},
		})
	}
}
