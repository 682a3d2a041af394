package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/certs"
)

func (x *Proxy) name() string { return "proxy " + cmp.Or(x.Address, x.ID) }

func (p *Picture) proxies(say func(Finding)) {
	if p.Snapshot != nil && len(p.Proxies) == 0 && len(p.Unseen) == 0 {
		say(Finding{
			Severity: Note, Subject: "proxies", What: "no proxy is registered in etcd",
			Why: "no proxy runs with this etcd and prefix, or none can write to this etcd", Cure: "start one with the same --etcd-endpoints and --etcd-prefix",
		})
	}
	for i := range p.Proxies {
		x := &p.Proxies[i]
		look := []string{}
		if x.Address != "" {
			look = append(look, shell("curl", "-s", "http://"+x.Address+"/status"))
		}
		switch {
		case x.V == 0 && x.Address == "" && x.Applied == 0:
			say(Finding{
				Severity: Warning, Subject: x.name(), What: "its presence cannot be read", Why: "the value of its key below " + p.Root + "proxies/ is not that of a proxy",
				Cure: "delete the key if no proxy with that id runs", Commands: []string{p.etcdctl("get", p.Root+"proxies/"+x.ID)},
			})
		case x.Behind > 0:
			say(Finding{
				Severity: Error, Subject: x.name(),
				What: fmt.Sprintf("it is stale: it has applied revision %d of the membership and not %d, also %s later", x.Applied, x.Behind, x.Watched.Round(100*time.Millisecond)),
				Why:  "it has lost etcd, is suspended, or hangs: it sends requests to instances that have left, and none to new ones",
				Cure: "check that its machine reaches etcd, and that its process runs (not stopped); if its /status does not reach the revision, restart this proxy",
				Commands: append(look,
					p.pdctl("wait", "--revision", fmt.Sprint(x.Behind), "--timeout", "30s")),
			})
		case x.Silent:
			say(Finding{
				Severity: Warning, Subject: x.name(),
				What: fmt.Sprintf("it is stale: its load digest has requests in flight and was not renewed in %s", x.Watched.Round(100*time.Millisecond)),
				Why:  "a proxy with requests in flight writes it every few seconds: this one is suspended, hangs, or has lost etcd",
				Cure: "check that its process runs (not stopped) and reaches etcd; otherwise restart this proxy, because the others no longer know its load", Commands: look,
			})
		case x.Load != nil && x.Load.Ignored != "":
			say(Finding{
				Severity: Warning, Subject: x.name(), What: "its load digest is not usable", Why: x.Load.Ignored,
				Cure: "use the same release for all proxies", Commands: []string{p.pdctl("status")},
			})
		}
	}
}

// isCertificate tells the notices about certificates, which have a check of their own.
func isCertificate(text string) bool { return strings.Contains(text, "certificate") }

func (p *Picture) certificates(say func(Finding)) {
	for i := range p.Proxies {
		x := &p.Proxies[i]
		for _, text := range x.Notices {
			if isCertificate(text) {
				p.certificate(x.name(), text, "write new files over the old ones on that machine: the proxy reads them again within seconds, without a restart", say)
			}
		}
	}
	for _, s := range p.Certificates {
		if text := s.Finding(p.Now); text != "" {
			files := "--etcd-cert and --etcd-key"
			if s.Use != certs.UseEtcd {
				files = "--engine-cert and --engine-key"
			}
			p.certificate("this pdctl", text, "get a new certificate, and give its files with "+files, say)
		}
	}
}

func (p *Picture) certificate(subject, text, cure string, say func(Finding)) {
	f := Finding{Severity: Error, Subject: subject, What: text, Why: "it was not renewed, and peers refuse an expired certificate", Cure: cure + " (docs/tls.md)"}
	switch {
	case strings.Contains(text, " expires at "):
		f.Severity, f.Why = Warning, "it expires within a week; then peers refuse it"
	case strings.Contains(text, "cannot be used"):
		f.Why = "the files do not match each other, or cannot be read"
	}
	f.Commands = []string{"openssl x509 -noout -subject -enddate -in cert.pem"}
	say(f)
}

func (p *Picture) notices(say func(Finding)) {
	var texts []string
	by := map[string][]string{}
	for i := range p.Proxies {
		for _, text := range p.Proxies[i].Notices {
			if isCertificate(text) {
				continue
			}
			if by[text] == nil {
				texts = append(texts, text)
			}
			by[text] = append(by[text], cmp.Or(p.Proxies[i].Address, p.Proxies[i].ID))
		}
	}
	for _, text := range texts {
		slices.Sort(by[text])
		say(Finding{
			Severity: Warning, Subject: "fleet", What: text, Why: "reported by " + some(by[text]),
			Cure: "see the present numbers and each instance's reason", Commands: []string{p.pdctl("list"), p.pdctl("status")},
		})
	}
}
