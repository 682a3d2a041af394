package certs

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/transport/certs/reload"
)

// The uses of certificates, as in metrics and messages.
const (
	UseListener     = "listener"
	UseEngines      = "engines"
	UseProxies      = "proxies"
	UseEtcd         = "etcd"
	UseEtcdListener = "etcd_listener" // of the embedded etcd
)

// expiryNotice is the time before a certificate expires from which Finding reports it.
const expiryNotice = 7 * 24 * time.Hour

// Options configure a Source.
type Options struct {
	Use   string // UseListener, UseEngines, UseProxies, UseEtcd or UseEtcdListener
	Files Files
	// Protocol is the ALPN protocol that a listener requires. "" means HTTP/1.1, so that the
	// end of one connection does not end many streams.
	Protocol string
	// ServerName is the name that a server's certificate must contain; "" means the host of
	// the dialled address.
	ServerName string
	Log        logrus.FieldLogger // nil: nothing is logged
}

// Source holds the configurations that were last loaded from its files. It is safe for concurrent use.
type Source struct {
	opts  Options
	files *reload.Files[material]
}

// Open reads the files and returns an error if they are unusable. An expired certificate is no
// error, because peers may not check it; it is logged, and part of the Status.
func Open(o Options) (*Source, error) {
	s := &Source{opts: o}
	files := reload.Options[material]{Paths: []string{o.Files.Cert, o.Files.Key, o.Files.CA}, MaxBytes: maxFile, Parse: s.parse}
	if o.Log != nil {
		files.Loaded, files.Rejected = s.loaded, s.rejected
	}
	var err error
	if s.files, err = reload.Open(files); err != nil {
		return nil, err
	}
	for _, p := range s.files.Current().parts {
		if why := p.over(time.Now()); why != "" && o.Log != nil {
			o.Log.WithField("file", p.file).Warn("the " + p.name + " " + why)
		}
	}
	return s, nil
}

// parse returns the configurations for the contents of the files.
func (s *Source) parse(contents [][]byte, old *material) (*material, error) {
	m, err := s.opts.Files.parse(contents[0], contents[1], contents[2], cmp.Or(s.opts.Protocol, "http/1.1"))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	for i, p := range m.parts {
		if why := p.over(now); why != "" && old != nil && old.parts[i].over(now) == "" {
			return nil, fmt.Errorf("%s: %w: the new %s %s", p.file, ErrFile, p.name, why)
		}
	}
	m.client.ServerName = s.opts.ServerName
	return m, nil
}

func (s *Source) loaded(m *material) {
	log := s.opts.Log.WithField("use", s.opts.Use)
	for _, leaf := range m.parts[0].certs {
		log = log.WithField("valid_until", leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	log.Info("certificate files have changed: new connections use the new ones")
}

func (s *Source) rejected(why error) {
	s.opts.Log.WithField("use", s.opts.Use).WithField("reason", why.Error()).Error("new certificate files cannot be used: the old ones stay active")
}

// Client returns the configuration for new connections. It must not be changed.
func (s *Source) Client() *tls.Config { return s.files.Current().client }

// Server returns the configuration of a listener; each handshake uses the active files.
func (s *Source) Server() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.files.Current().server, nil },
	}
}

// Watch rereads the files periodically until ctx ends.
func (s *Source) Watch(ctx context.Context) { s.files.Watch(ctx) }

// Status is the state of a Source.
type Status struct {
	Use      string
	NotAfter time.Time // of the active certificate or the CA certificate, whichever ends first; zero without either
	Name     string    // of that certificate
	File     string    // of that certificate, or of the one in Over
	Over     string    // why peers are refused, or refuse this program; "" if the certificates are valid
	reload.Status
}

// Status returns the state of the source.
func (s *Source) Status() Status {
	st := Status{Use: s.opts.Use, Status: s.files.Status()}
	parts := s.files.Current().parts
	for _, p := range parts {
		if end := p.end(); !end.IsZero() && (st.NotAfter.IsZero() || end.Before(st.NotAfter)) {
			st.NotAfter, st.Name, st.File = end, p.name, p.file
		}
	}
	for _, p := range parts {
		if why := p.over(time.Now()); why != "" && st.Over == "" {
			st.Over, st.File = fmt.Sprintf("the %s for %s %s: %s", p.name, forWhom(st.Use), why, p.file), p.file
		}
	}
	return st
}

// Finding returns the problem that an operator has to fix, "" if there is none.
func (s Status) Finding(now time.Time) string {
	switch left := s.NotAfter.Sub(now); {
	case s.Problem != "":
		return fmt.Sprintf("the new certificate files for %s cannot be used, and the old ones stay active: %s", forWhom(s.Use), s.Problem)
	case s.Over != "":
		return s.Over
	case s.NotAfter.IsZero():
	case left < expiryNotice:
		return fmt.Sprintf("the %s for %s expires at %s", s.Name, forWhom(s.Use), s.NotAfter.UTC().Format(time.RFC3339))
	}
	return ""
}

func forWhom(use string) string {
	switch use {
	case UseListener:
		return "clients"
	case UseEtcdListener:
		return "clients of the embedded etcd"
	}
	return use
}
