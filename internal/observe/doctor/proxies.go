package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Proxies are the proxies that are present in etcd.
type Proxies []Proxy

// Proxy is the state of a proxy, read twice.
type Proxy struct {
	lease.ProxyPresence
	Load *loaddigest.ProxyLoad // nil: it publishes no load
	// Behind is a revision that the proxy had not applied at either reading; 0 if there is none.
	Behind int64
	// Older is the revision of documents that the proxy may not know, because it is of an older
	// release; 0 if there are none.
	Older int64
	// Silent reports whether it had requests in flight and did not renew its digest between
	// the readings.
	Silent bool
	// Watched is the time between the readings.
	Watched time.Duration
}

func (x *Proxy) name() string { return "proxy " + cmp.Or(x.Address, x.ID) }

// connector returns the connector of all proxies for records that name none, "" if they
// differ.
func (x Proxies) connector() string {
	switch {
	case len(x) == 0:
		return connector.Default
	case slices.ContainsFunc(x, func(p Proxy) bool { return p.Connector != x[0].Connector }):
		return ""
	}
	return cmp.Or(x[0].Connector, connector.Default)
}

// reporters returns the wanted texts of the proxies, each once, and by text the proxies that report it.
func (x Proxies) reporters(of func(*Proxy) []string, wanted func(string) bool) (texts []string, by map[string][]string) {
	return instance.Reporters(len(x), func(i int) (string, []string) {
		return cmp.Or(x[i].Address, x[i].ID), slices.DeleteFunc(slices.Clone(of(&x[i])), func(text string) bool { return !wanted(text) })
	})
}

// notServing reports the proxies that can serve no request.
func (x Proxies) notServing(r *report) {
	texts, by := x.reporters(func(p *Proxy) []string { return []string{p.NotServing} }, func(text string) bool { return text != "" })
	slices.Sort(texts)
	for _, text := range texts {
		subject := "fleet"
		if len(by[text]) < len(x) {
			subject = "proxy " + instance.Some(by[text])
		}
		r.add(Finding{
			Severity: Error, Subject: subject, What: text, Why: "reported by " + instance.Some(by[text]) + "; /readyz there answers 503",
			Cure: "start engines, or bring back those that the list shows with the reason why they are not used", Commands: []string{r.pdctl("list")},
		})
	}
}

// behind reports those that do not follow the membership, or whose keys below root cannot be
// read.
func (x Proxies) behind(root string, r *report) {
	for i := range x {
		one := &x[i]
		commands := []string{r.pdctl("status")} // its APPLIED and DIGEST AGE
		switch {
		case one.V == 0 && one.Address == "" && one.Applied == 0:
			r.add(Finding{
				Severity: Warning, Subject: one.name(), What: "its presence cannot be read", Why: "the value of its key below " + root + "proxies/ is not that of a proxy",
				Cure: "delete the key if no proxy with that id runs", Commands: []string{r.etcdctl("get", root+"proxies/"+one.ID)},
			})
		case one.Behind > 0:
			r.add(Finding{
				Severity: Error, Subject: one.name(),
				What: fmt.Sprintf("it is stale: it has applied revision %d of the membership and not %d, also %s later", one.Applied, one.Behind, one.Watched.Round(100*time.Millisecond)),
				Why:  "it has lost etcd, is suspended, or hangs: it sends requests to instances that have left, and none to new ones",
				Cure: "check that its machine reaches etcd, and that its process runs (not stopped); if its APPLIED does not reach the revision, restart this proxy",
				Commands: append(commands,
					r.pdctl("wait", "--revision", fmt.Sprint(one.Behind), "--timeout", "30s")),
			})
		case one.Silent:
			r.add(Finding{
				Severity: Warning, Subject: one.name(),
				What: fmt.Sprintf("it is stale: its load digest has requests in flight and was not renewed in %s", one.Watched.Round(100*time.Millisecond)),
				Why:  "a proxy with requests in flight writes it every few seconds: this one is suspended, hangs, or has lost etcd",
				Cure: "check that its process runs (not stopped) and reaches etcd; otherwise restart this proxy, because the others no longer know its load", Commands: commands,
			})
		case one.Older > 0:
			r.add(Finding{
				Severity: Warning, Subject: one.name(), What: fmt.Sprintf("it may not apply limits or model routes of revision %d", one.Older),
				Why: "it is of an older release, which does not report that it knows them", Cure: "update this proxy", Commands: commands,
			})
		case one.Load != nil && one.Load.Ignored != "":
			r.add(Finding{
				Severity: Warning, Subject: one.name(), What: "its load digest is not usable", Why: one.Load.Ignored,
				Cure: "use the same release for all proxies", Commands: []string{r.pdctl("status")},
			})
		}
	}
}

func (x Proxies) notices(r *report) {
	texts, by := x.reporters(func(p *Proxy) []string { return p.Notices }, func(text string) bool { return !isCertificate(text) && !unnotified.MatchString(text) })
	for _, text := range texts {
		slices.Sort(by[text])
		r.add(Finding{
			Severity: Warning, Subject: "fleet", What: text, Why: "reported by " + instance.Some(by[text]),
			Cure: "see each instance's state and reason, and the notices as they are now", Commands: []string{r.pdctl("list"), r.pdctl("status")},
		})
	}
}

// unused reports an instance that proxies do not use, because it has not answered them or is
// ejected.
func (x Proxies) unused(in *instance.Instance, commands []string, r *report) {
	var by []string
	var view instance.View
	reason := ""
	for i := range x {
		one := &x[i]
		is, why := one.Opinion(in.Key)
		if is != "" && is != instance.Elsewhere && !wrongModel.MatchString(why) && one.Applied >= in.ModRevision {
			by, view, reason = append(by, one.name()), is, why
		}
	}
	if len(by) == 0 {
		return
	}
	f := Finding{
		Severity: Error, Subject: in.Key.String(), What: fmt.Sprintf("%d of %d proxies cannot use it: %s", len(by), len(x), view), Why: instance.Some(by) + ": " + reason,
		Cure:     "check that the engine runs, and that the machines of these proxies can reach its address; proxies use it again when it answers",
		Commands: slices.Concat([]string{r.pdctl("get", in.Key.String())}, commands),
	}
	if strings.Contains(reason, "no TLS") {
		f.Cure = "correct --engine-ca, --engine-cert and --engine-key of these proxies, or the certificate of the engine; proxies use it again when it answers"
	}
	if in.Static() {
		f.Cure += "; if the engine will not return, remove the instance"
		f.Commands = append(f.Commands, r.pdctl("remove", string(in.Role), in.Address))
	}
	if len(by) < len(x) {
		f.Severity = Warning
	}
	r.add(f)
}
