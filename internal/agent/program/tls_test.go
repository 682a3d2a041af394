package program

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// An agent probes and registers its engine over TLS with certificates on both sides. It
// reports an engine whose certificate has another name, an etcd that refuses the
// agent's certificate, and new files that cannot be used, also as a bridge.
func TestAgentOverTLS(t *testing.T) {
	t.Parallel()
	a, other := testkit.NewAuthority(t, "fleet"), testkit.NewAuthority(t, "strangers")
	here := []string{"127.0.0.1"}
	etcdCert, etcdKey := a.Issue("etcd", testkit.Certificate{Hosts: here})
	cert, key := a.Issue("agent", testkit.Certificate{CN: "agent"})
	stranger, strangerKey := other.Issue("stranger", testkit.Certificate{CN: "stranger"})
	a.Issue("engine", testkit.Certificate{Hosts: []string{"engine-7"}})
	etcd := "https://" + etcdtest.Start(t, etcdtest.WithTLS(etcdCert, etcdKey, a.CA)).Endpoint()
	engine := fakevllm.StartTest(t, fakevllm.Options{Role: fakevllm.RoleDecode, Mode: fakevllm.Plain, Models: []string{"m"}})
	address := testkit.TLSFront(t, &tls.Config{
		Certificates: []tls.Certificate{a.Pair("engine")}, ClientCAs: a.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	}, engine.Address())
	args := func(etcdCert, etcdKey string, more ...string) []string {
		return fast(etcd, "decode", address, append(more, "--engine", "https://"+address, "--engine-ca", a.CA, "--engine-cert", cert, "--engine-key", key,
			"--etcd-ca", a.CA, "--etcd-cert", etcdCert, "--etcd-key", etcdKey, "--drain-timeout", "1s")...)
	}
	log, stop := startAgent(t, args(cert, key))
	log.awaits(t, "its certificate is for another name")
	stop()
	log, stop = startAgent(t, args(stranger, strangerKey, "--engine-server-name", "engine-7"))
	log.awaits(t, "it rejected our certificate")
	stop()

	socket, bridge := filepath.Join(t.TempDir(), "a.sock"), filepath.Join(t.TempDir(), "b.sock")
	startAgent(t, []string{"--zmq-register", "tcp://" + testkit.FreePort(t), "--etcd-endpoints", etcd,
		"--etcd-ca", a.CA, "--etcd-cert", cert, "--etcd-key", key, "--socket", bridge})
	startAgent(t, args(cert, key, "--engine-server-name", "engine-7", "--socket", socket))
	cli, err := clientv3.New(clientv3.Config{
		Endpoints: []string{etcd}, DialTimeout: time.Minute,
		TLS: &tls.Config{RootCAs: a.Pool(), Certificates: []tls.Certificate{a.Pair("agent")}},
	})
	require.NoError(t, err)
	defer cli.Close()
	testkit.Eventually(t, patience, func() error {
		resp, err := cli.Get(t.Context(), "/pd/decode/"+address)
		if err != nil || len(resp.Kvs) != 1 {
			return fmt.Errorf("%v, %w", resp, err)
		}
		var rec instance.Record
		if err := json.Unmarshal(resp.Kvs[0].Value, &rec); err != nil || rec.Scheme != "https" || rec.State != instance.Ready {
			return fmt.Errorf("%s, %w", resp.Kvs[0].Value, err)
		}
		return nil
	})
	testkit.WriteFile(t, cert, "no certificate")
	for _, use := range []string{"engines", "etcd"} {
		testkit.Eventually(t, patience, func() error {
			code, out, errs := ask(t, "status", "--socket", socket)
			if code != 0 || !strings.Contains(out, "the new certificate files for "+use+" cannot be used, and the old ones stay active: "+cert) || !strings.Contains(out, "registered") {
				return fmt.Errorf("%d %s%s", code, out, errs)
			}
			return nil
		})
	}
	for path, want := range map[string]string{socket: "pd_agent_certificate_problems 2", bridge: "pd_agent_certificate_problems 1"} {
		testkit.Eventually(t, patience, func() error {
			text, err := agentctl.NewClient(path).Metrics(t.Context())
			if err != nil || !strings.Contains(string(text), want) {
				return fmt.Errorf("%w\n%s", err, text)
			}
			return nil
		})
	}
}
