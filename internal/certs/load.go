package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Files names what is read. Cert and Key go together.
type Files struct{ Cert, Key, CA string }

// None tells that no file is named.
func (f Files) None() bool { return f == Files{} }

// maxFile bounds a file: a larger one is no certificate.
const maxFile = 4 << 20

// ErrFile is wrapped by what is wrong with a file.
var ErrFile = errors.New("unusable")

// content is what the files held when they were last looked at.
type content struct{ cert, key, ca []byte }

func (c content) equal(o content) bool {
	return bytes.Equal(c.cert, o.cert) && bytes.Equal(c.key, o.key) && bytes.Equal(c.ca, o.ca)
}

func (f Files) read() (c content, err error) {
	for _, one := range []struct {
		path string
		into *[]byte
	}{{f.Cert, &c.cert}, {f.Key, &c.key}, {f.CA, &c.ca}} {
		if one.path == "" {
			continue
		}
		if *one.into, err = readFile(one.path); err != nil {
			return content{}, err
		}
	}
	return c, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(raw) > maxFile {
		err = fmt.Errorf("%s: %w: more than %d bytes", path, ErrFile, maxFile)
	}
	return raw, err
}

// material is a set of files that fit each other.
type material struct {
	client, server *tls.Config
	leaf           *x509.Certificate // nil without Cert
}

// parse makes the configurations of what was read.
func (f Files) parse(c content) (*material, error) {
	m := &material{
		client: &tls.Config{MinVersion: tls.VersionTLS12},
		// HTTP/1.1 alone: one connection's fate must not be that of many streams.
		server: &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}},
	}
	if f.Cert != "" {
		pair, err := tls.X509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w: %w", f.Cert, f.Key, ErrFile, err)
		}
		m.leaf = pair.Leaf
		m.server.Certificates = []tls.Certificate{pair}
		// Given whatever authorities the server names: with none fitting, Go would send no
		// certificate, and the server could only say that one is missing.
		m.client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	if f.CA != "" {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(c.ca) {
			return nil, fmt.Errorf("%s: %w: it holds no certificate in PEM form", f.CA, ErrFile)
		}
		m.client.RootCAs, m.server.ClientCAs = pool, pool
		m.server.ClientAuth = tls.RequireAndVerifyClientCert
		// A resumed session would show the certificate of its first handshake, to the
		// authorities of then.
		m.server.SessionTicketsDisabled = true
	}
	return m, nil
}

// over tells why a certificate is not valid at a time, "" if it is.
func over(leaf *x509.Certificate, now time.Time) string {
	switch {
	case leaf == nil:
	case now.After(leaf.NotAfter):
		return "has expired at " + leaf.NotAfter.UTC().Format(time.RFC3339)
	case now.Before(leaf.NotBefore):
		return "is not valid before " + leaf.NotBefore.UTC().Format(time.RFC3339)
	}
	return ""
}
