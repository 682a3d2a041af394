package testkit

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Authority signs certificates for a test.
type Authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// CA is the path of the authority's certificate.
	CA string
}

// NewAuthority returns an Authority with a new directory.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	a := &Authority{t: t, dir: t.TempDir()}
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(30 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	var der []byte
	a.key, der = a.sign(template, nil)
	var err error
	a.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	a.CA = filepath.Join(a.dir, "ca.pem")
	a.write(a.CA, "CERTIFICATE", der)
	return a
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	require.NoError(t, err)
	return n
}

// sign makes a key and its certificate, which is self-signed if parent is nil.
func (a *Authority) sign(template, parent *x509.Certificate) (*ecdsa.PrivateKey, []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	signer := a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	return key, der
}

func (a *Authority) write(path, kind string, der []byte) {
	a.t.Helper()
	// Replace the file atomically, as tools that rotate certificates do.
	next := path + ".next"
	require.NoError(a.t, os.WriteFile(next, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	require.NoError(a.t, os.Rename(next, path))
}

// Certificate describes a certificate. Servers and clients may use it.
type Certificate struct {
	CN    string
	Hosts []string // names and addresses
	// From and Until are the bounds of its validity, relative to now; default -1 h and
	// 24 h.
	From, Until time.Duration
}

// Issue writes a certificate and its key to files with this name, and replaces existing ones.
func (a *Authority) Issue(name string, c Certificate) (cert, key string) {
	a.t.Helper()
	template := &x509.Certificate{
		SerialNumber: serial(a.t), Subject: pkix.Name{CommonName: c.CN},
		NotBefore: time.Now().Add(cmp.Or(c.From, -time.Hour)), NotAfter: time.Now().Add(cmp.Or(c.Until, 24*time.Hour)),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, h := range c.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	private, der := a.sign(template, a.cert)
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(a.t, err)
	cert, key = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+"-key.pem")
	a.write(key, "PRIVATE KEY", raw)
	a.write(cert, "CERTIFICATE", der)
	return cert, key
}

// Pool returns a pool that contains this authority's certificate.
func (a *Authority) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// Pair reads a certificate and its key that Issue has written.
func (a *Authority) Pair(name string) tls.Certificate {
	a.t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+"-key.pem"))
	require.NoError(a.t, err)
	return pair
}
