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

// Reason is why a handshake failed, in one word for a metric.
type Reason string

// The reasons.
const (
	Expired          Reason = "expired"           // or not valid yet
	WrongName        Reason = "wrong_name"        // the certificate is another party's
	UnknownAuthority Reason = "unknown_authority" // none that is trusted has signed it
	BadCertificate   Reason = "bad_certificate"   // refused for another reason
	NoCertificate    Reason = "no_certificate"    // one is asked for, and none was shown
	NoTLS            Reason = "no_tls"            // the other side does not speak it
	Protocol         Reason = "protocol"          // no version or cipher in common, and the like
	Closed           Reason = "closed"            // the other side went away meanwhile
)

// Refused reports why a handshake failed at this side or, by an alert, at the other. ok is
// false for an error that is not about TLS. In text, a certificate is
// the one of the other side unless it is called "ours".
func Refused(err error) (reason Reason, text string, ok bool) {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var op *net.OpError
	switch {
	case err == nil:
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
		return NoCertificate, "it shows no certificate, and one is required", true
	case strings.Contains(err.Error(), "tls: "):
		return Protocol, strings.TrimPrefix(err.Error(), "tls: "), true
	}
	return "", "", false
}

// alert explains an alert that the other side has sent.
func alert(text string) (Reason, string) {
	text = strings.TrimPrefix(text, "tls: ")
	switch text {
	case "expired certificate", "revoked certificate":
		return Expired, "it refuses our certificate: it says that it has expired (" + text + ")"
	case "unknown certificate authority":
		return UnknownAuthority, "it refuses our certificate: an authority that it does not know has signed it (" + text + ")"
	case "certificate required":
		return NoCertificate, "it wants a certificate of us, and got none (" + text + ")"
	case "bad certificate", "unknown certificate", "unsupported certificate", "access denied":
		return BadCertificate, "it refuses our certificate, or that none was shown (" + text + ")"
	}
	return Protocol, "it ended the handshake: " + text
}

func validity(c *x509.Certificate) string {
	if c == nil {
		return "has expired or is not valid yet"
	}
	if why := over(c, time.Now()); why != "" {
		return why
	}
	return fmt.Sprintf("is valid from %s to %s, which another clock sees otherwise", c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339))
}

func issuer(c *x509.Certificate) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf(" (%.200q)", c.Issuer.String())
}

// Error is a connection that TLS has refused.
type Error struct {
	Reason Reason
	Text   string
	Err    error
}

func (e *Error) Error() string { return "TLS: " + e.Text }
func (e *Error) Unwrap() error { return e.Err }

// Explain turns an error of a connection into an *Error where TLS is at fault, and leaves
// it as it is elsewhere.
func Explain(err error) error {
	if _, known := errors.AsType[*Error](err); known {
		return err
	}
	if reason, text, ok := Refused(err); ok {
		return &Error{Reason: reason, Text: text, Err: err}
	}
	return err
}
