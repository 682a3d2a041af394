package certs

import (
	"context"
	"crypto/tls"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
)

// The uses of certificates, as in metrics and messages.
const (
	UseListener = "listener"
	UseEngines  = "engines"
	UseEtcd     = "etcd"
)

// Uses lists them.
func Uses() []string { return []string{UseListener, UseEngines, UseEtcd} }

const (
	// lookEvery is between two looks at the files.
	lookEvery = 2 * time.Second
	// soon is how long before its end a certificate is told of.
	soon = 7 * 24 * time.Hour
)

// Options configure a Source.
type Options struct {
	Use   string // UseListener, UseEngines or UseEtcd
	Files Files
	// ServerName is the name that a server's certificate must bear; "": that of the
	// address which is dialled.
	ServerName string
	Log        logrus.FieldLogger // nil: nothing is logged
	// Every is between two looks at the files; 0 means two seconds.
	Every time.Duration
}

// Source has what was last read of its files. It is safe for concurrent use.
type Source struct {
	opts Options
	now  atomic.Pointer[material]

	mu      sync.Mutex // guards what follows; held over looks, not over handshakes
	seen    content
	problem string // why the files of now are not in force
	reloads int64
}

// Open reads the files. What is wrong with them at the start is an error, but for a
// certificate that has expired: other programs may not look at it.
func Open(o Options) (*Source, error) {
	if o.Every <= 0 {
		o.Every = lookEvery
	}
	s := &Source{opts: o}
	c, err := o.Files.read()
	if err != nil {
		return nil, err
	}
	m, err := o.Files.parse(c)
	if err != nil {
		return nil, err
	}
	m.client.ServerName = o.ServerName
	s.seen = c
	s.now.Store(m)
	if why := over(m.leaf, time.Now()); why != "" && o.Log != nil {
		o.Log.WithField("file", o.Files.Cert).Warn("the certificate " + why)
	}
	return s, nil
}

// Client is the configuration for a connection that is made now. Nobody changes it.
func (s *Source) Client() *tls.Config { return s.now.Load().client }

// Server is the configuration of a listener; each handshake gets what is in force then.
func (s *Source) Server() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.now.Load().server, nil },
	}
}

// Watch reads the files again from time to time until ctx ends. They are compared by
// what they hold: neither a time stamp nor an event can then be missed, whatever kind of
// mount they are on.
func (s *Source) Watch(ctx context.Context) {
	if s.opts.Files.None() {
		return
	}
	tick := time.NewTicker(s.opts.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.Look()
		}
	}
}

// Look reads the files once, and takes them if they are new and can be used.
func (s *Source) Look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.opts.Files.read()
	if err != nil {
		s.keep(err.Error())
		return
	}
	if c.equal(s.seen) {
		s.problem = ""
		return
	}
	m, err := s.opts.Files.parse(c)
	if err != nil {
		s.keep(err.Error())
		return
	}
	if why := over(m.leaf, time.Now()); why != "" && over(s.now.Load().leaf, time.Now()) == "" {
		s.keep(fmt.Sprintf("%s: the new certificate %s", s.opts.Files.Cert, why))
		return
	}
	m.client.ServerName = s.opts.ServerName
	s.seen, s.problem = c, ""
	s.reloads++
	s.now.Store(m)
	if s.opts.Log != nil {
		log := s.opts.Log.WithField("use", s.opts.Use)
		if m.leaf != nil {
			log = log.WithField("valid_until", m.leaf.NotAfter.UTC().Format(time.RFC3339))
		}
		log.Info("certificate files have changed: new connections use the new ones")
	}
}

// keep leaves the old ones in force; said once for each reason.
func (s *Source) keep(why string) {
	if why != s.problem && s.opts.Log != nil {
		s.opts.Log.WithField("use", s.opts.Use).WithField("reason", why).Error("new certificate files cannot be used: the old ones stay in force")
	}
	s.problem = why
}

// Status is how a source is.
type Status struct {
	Use      string
	NotAfter time.Time // of the certificate in force; zero without one
	Problem  string    // why the files as they are now are not in force; "" if they are
	Reloads  int64     // times that new files were taken
}

// Status tells how the source is.
func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Use: s.opts.Use, Problem: s.problem, Reloads: s.reloads}
	if leaf := s.now.Load().leaf; leaf != nil {
		st.NotAfter = leaf.NotAfter
	}
	return st
}

// Finding says in words what an operator has to see to, "" for nothing.
func (s Status) Finding(now time.Time) string {
	switch left := s.NotAfter.Sub(now); {
	case s.Problem != "":
		return fmt.Sprintf("the new certificate files for %s cannot be used, and the old ones stay in force: %s", forWhom(s.Use), s.Problem)
	case s.NotAfter.IsZero():
	case left <= 0:
		return fmt.Sprintf("the certificate for %s has expired at %s", forWhom(s.Use), s.NotAfter.UTC().Format(time.RFC3339))
	case left < soon:
		return fmt.Sprintf("the certificate for %s expires at %s", forWhom(s.Use), s.NotAfter.UTC().Format(time.RFC3339))
	}
	return ""
}

func forWhom(use string) string {
	if use == UseListener {
		return "clients"
	}
	return use
}
