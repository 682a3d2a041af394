package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// Reason is the reason why a handshake failed, as a label value of a metric.
type Reason string

// The reasons.
const (
	Expired          Reason = "expired"           // or not valid yet
	WrongName        Reason = "wrong_name"        // the certificate is for another name
	UnknownAuthority Reason = "unknown_authority" // not signed by a trusted authority
	BadCertificate   Reason = "bad_certificate"   // rejected for another reason
	NoCertificate    Reason = "no_certificate"    // required, but not presented
	NoTLS            Reason = "no_tls"            // the peer does not speak TLS
	Protocol         Reason = "protocol"          // for example no common version or cipher
	Closed           Reason = "closed"            // the peer closed the connection during the handshake
)

// Refused returns why a handshake failed, locally or by an alert of the peer. ok is false if err
// is not about TLS. In text, a certificate is the peer's unless it is called "ours".
func Refused(err error) (reason Reason, text string, ok bool) {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var op *net.OpError
	var dns *net.DNSError
	switch {
	case err == nil, errors.As(err, &dns): // a host's name may look like an error of TLS
		return "", "", false
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return Expired, "its certificate " + validity(invalid.Cert), true
	case errors.As(err, &name):
		return WrongName, "its certificate is for another name: " + strings.TrimPrefix(name.Error(), "x509: "), true
	case errors.As(err, &authority):
		return UnknownAuthority, "its certificate is signed by an unknown authority" + issuer(authority.Cert), true
	case errors.As(err, &invalid):
		return BadCertificate, "its certificate cannot be used: " + strings.TrimPrefix(invalid.Error(), "x509: "), true
	case errors.As(err, &record):
		return NoTLS, "it does not speak TLS; if it speaks plain HTTP, use http://", true
	case errors.As(err, &op) && op.Op == "remote error":
		reason, text = alert(op.Err.Error())
		return reason, text, true
	case strings.Contains(err.Error(), "client didn't provide a certificate"):
		return NoCertificate, "it sent no certificate, and one is required", true
	case strings.Contains(err.Error(), "tls: "):
		return Protocol, strings.TrimPrefix(err.Error(), "tls: "), true
	}
	return "", "", false
}

// alert explains an alert that the peer sent.
func alert(text string) (Reason, string) {
	text = strings.TrimPrefix(text, "tls: ")
	switch text {
	case "expired certificate", "revoked certificate":
		return Expired, "it rejected our certificate: expired or revoked (" + text + ")"
	case "unknown certificate authority":
		return UnknownAuthority, "it rejected our certificate: signed by an authority that it does not know (" + text + ")"
	case "certificate required":
		return NoCertificate, "it requires a client certificate, and got none (" + text + ")"
	case "bad certificate", "unknown certificate", "unsupported certificate", "access denied":
		return BadCertificate, "it rejected our certificate, or requires one (" + text + ")"
	}
	return Protocol, "it ended the handshake: " + text
}

func validity(c *x509.Certificate) string {
	if c == nil {
		return "has expired or is not valid yet"
	}
	if why := (part{certs: []*x509.Certificate{c}}).over(time.Now()); why != "" {
		return why
	}
	return fmt.Sprintf("is valid from %s to %s, which another clock may see otherwise", c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339))
}

func issuer(c *x509.Certificate) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf(" (%.200q)", c.Issuer.String())
}

// Error is the error of a connection whose TLS handshake failed.
type Error struct {
	Reason Reason
	Text   string
	Err    error
}

func (e *Error) Error() string { return "TLS: " + e.Text }
func (e *Error) Unwrap() error { return e.Err }

// Explain returns err as an *Error if TLS caused it, and unchanged otherwise.
func Explain(err error) error {
	if _, known := errors.AsType[*Error](err); known {
		return err
	}
	if reason, text, ok := Refused(err); ok {
		return &Error{Reason: reason, Text: text, Err: err}
	}
	return err
}
