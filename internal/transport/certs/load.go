package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

// Files names the files of a Source. Cert and Key must be set together.
type Files struct{ Cert, Key, CA string }

// None reports whether no file is named.
func (f Files) None() bool { return f == Files{} }

// maxFile bounds the size of a file in bytes; a larger file is not a certificate.
const maxFile = 4 << 20

// ErrFile is wrapped by every error about the contents of a file.
var ErrFile = errors.New("unusable")

// material is the parsed content of a consistent set of files.
type material struct {
	client, server *tls.Config
	parts          [2]part // of Cert and CA
}

// part has the certificates of one file. At least one of them must be valid.
type part struct {
	name, file string
	certs      []*x509.Certificate // for Cert only the leaf; empty without a file
}

// parse builds the TLS configurations for the contents of the files.
func (f Files) parse(cert, key, ca []byte, protocol string) (*material, error) {
	m := &material{
		client: &tls.Config{MinVersion: tls.VersionTLS12},
		server: &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{protocol}},
	}
	if err := errors.Join(checkPEM(f.Cert, cert), checkPEM(f.CA, ca)); err != nil {
		return nil, err
	}
	if f.Cert != "" {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w: %w", f.Cert, f.Key, ErrFile, err)
		}
		m.parts[0] = part{"certificate", f.Cert, []*x509.Certificate{pair.Leaf}}
		m.server.Certificates = []tls.Certificate{pair}
		// The certificate is sent whichever authorities the server accepts. Otherwise Go sends
		// none if no authority matches, and the server can only report a missing certificate.
		m.client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	if f.CA != "" {
		pool, all := x509.NewCertPool(), authorities(ca)
		if len(all) == 0 {
			return nil, fmt.Errorf("%s: %w: it contains no certificate in PEM form", f.CA, ErrFile)
		}
		for _, c := range all {
			pool.AddCert(c)
		}
		m.parts[1] = part{"CA certificate", f.CA, all}
		m.client.RootCAs, m.server.ClientCAs = pool, pool
		m.server.ClientAuth = tls.RequireAndVerifyClientCert
		// A resumed session would keep the certificate of its first handshake, verified
		// against the authorities of that time.
		m.server.SessionTicketsDisabled = true
	}
	return m, nil
}

// checkPEM returns an error if a PEM block of a file is damaged or cut off. Decoders skip such a block, and
// handshakes then fail because an authority or an intermediate certificate is missing.
func checkPEM(path string, text []byte) error {
	all, good := bytes.Count(text, []byte("-----BEGIN ")), 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		good++
	}
	if good < all {
		return fmt.Errorf("%s: %w: %d of %d PEM blocks cannot be read", path, ErrFile, all-good, all)
	}
	return nil
}

// authorities returns the certificates in a file. Like x509.CertPool, it skips certificates that Go does
// not accept, which a system's bundle may contain.
func authorities(text []byte) (list []*x509.Certificate) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" || len(block.Headers) > 0 {
			continue
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			list = append(list, c)
		}
	}
	return list
}

// end returns the time at which the last of the certificates expires; zero without any.
func (p part) end() (at time.Time) {
	for _, c := range p.certs {
		if c.NotAfter.After(at) {
			at = c.NotAfter
		}
	}
	return at
}

// over returns the reason why none of the certificates is valid at a time; "" if one is, or without any.
func (p part) over(now time.Time) (why string) {
	for _, c := range p.certs {
		switch {
		case now.After(c.NotAfter):
			why = "has expired at " + c.NotAfter.UTC().Format(time.RFC3339)
		case now.Before(c.NotBefore):
			why = "is not valid before " + c.NotBefore.UTC().Format(time.RFC3339)
		default:
			return ""
		}
	}
	return why
}
