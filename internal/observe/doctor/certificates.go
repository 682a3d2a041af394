package doctor

import (
	"fmt"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// isCertificate reports whether a notice is about a certificate; these have their own check.
func isCertificate(text string) bool { return strings.Contains(text, "certificate") }

// certificates reports problems of the proxies' certificates.
func (x Proxies) certificates(r *report) {
	for i := range x {
		one := &x[i]
		for _, text := range one.Notices {
			if isCertificate(text) {
				certificate(one.name(), text, "write new files over the old ones on that machine: the proxy reads them again within seconds, without a restart", nil, r)
			}
		}
	}
}

// certificates reports problems of the certificates of agents on this machine.
func (a *Agents) certificates(r *report) {
	for _, one := range a.Here {
		for _, text := range one.Certificates {
			certificate(fmt.Sprintf("%s/%s", one.Role, one.Address), text, "write new files over the old ones on this machine: the agent reads them again within seconds, without a restart", nil, r)
		}
	}
}

// ofFiles reports problems of the certificate files in the settings of pdctl.
func ofFiles(files []certs.Status, now time.Time, r *report) {
	for _, s := range files {
		if text := s.Finding(now); text != "" {
			flags := "--etcd-cert and --etcd-key"
			if strings.Contains(text, "CA certificate") {
				flags = "--etcd-ca"
			}
			if s.Use != certs.UseEtcd {
				flags = strings.ReplaceAll(flags, "--etcd", "--engine")
			}
			certificate("this pdctl", text, "get a new certificate, and set its files with "+flags,
				[]string{shell("openssl", "x509", "-noout", "-subject", "-enddate", "-in", s.File)}, r)
		}
	}
}

func certificate(subject, text, cure string, commands []string, r *report) {
	f := Finding{Severity: Error, Subject: subject, What: text, Why: "it was not renewed; TLS refuses an expired certificate, and those that an expired CA has signed", Cure: cure + " (docs/tls.md)", Commands: commands}
	switch {
	case strings.Contains(text, " expires at "):
		f.Severity, f.Why = Warning, "it expires within a week; then peers refuse it"
	case strings.Contains(text, "cannot be used"):
		f.Why = "the files do not match each other, cannot be read, or are not valid now"
	case strings.Contains(text, "is not valid before"):
		f.Why = "the clock of that machine or of the one that issued it is wrong; TLS refuses a certificate before its time"
	}
	r.add(f)
}
