package program

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

// envRun makes the test binary an agent, so that tests can send it signals.
const envRun = "PDMESH_TEST_RUN_AGENT"

func TestMain(m *testing.M) {
	if kind := os.Getenv(envEngine); kind != "" {
		os.Exit(engineMain(kind, os.Args[1:]))
	}
	if os.Getenv(envRun) != "" {
		os.Exit(program{ownsProcess: true}.run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	leak.Main(m)
}

const patience = time.Minute

type lockedBuffer struct{ testkit.Buffer }

func (l *lockedBuffer) awaits(t *testing.T, part string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if s := l.String(); !strings.Contains(s, part) {
			return fmt.Errorf("%q is not in\n%s", part, s)
		}
		return nil
	})
}

// fast returns the flags that all tests share. The lease survives a few seconds without CPU time.
func fast(etcd, role, address string, more ...string) []string {
	return append([]string{
		"--etcd-endpoints", etcd, "--role", role, "--address", address, "--probe-interval", "50ms",
		"--ttl", "10s", "--kv-lease", "0s", "--log-level", "debug", "--socket", "off",
	}, more...)
}

// startAgent runs an agent in this process; stop asks it to drain and returns its exit code.
func startAgent(t *testing.T, args []string) (log *lockedBuffer, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	log = &lockedBuffer{}
	done := make(chan int, 1)
	go func() { done <- run(ctx, args, log, log) }()
	var once sync.Once
	code := 0
	stop = func() int {
		once.Do(func() { cancel(); code = <-done })
		return code
	}
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Logf("agent:\n%s", log)
		}
	})
	return log, stop
}

func key(role, address string) string { return "/pd/" + role + "/" + address }

// site starts an etcd and an engine. k is the key of the engine's record in a role.
func site(t *testing.T, role string, o fakevllm.Options) (etcd *etcdtest.Server, cli *clientv3.Client, engine *fakevllm.Server, k string) {
	t.Helper()
	etcd, engine = etcdtest.Start(t), fakevllm.StartTest(t, o)
	return etcd, etcd.Client(t), engine, key(role, engine.Address())
}

// look reads a record; nil if there is none.
func look(t *testing.T, cli *clientv3.Client, key string) (*mvccpb.KeyValue, instance.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resp, err := cli.Get(ctx, key)
	if err != nil || len(resp.Kvs) == 0 {
		return nil, instance.Record{}
	}
	var rec instance.Record
	if err := json.Unmarshal(resp.Kvs[0].Value, &rec); err != nil {
		t.Errorf("record %q: %v", resp.Kvs[0].Value, err)
	}
	return resp.Kvs[0], rec
}

// awaitState waits until the record has a state.
func awaitState(t *testing.T, cli *clientv3.Client, key string, want instance.State) (*mvccpb.KeyValue, instance.Record) {
	t.Helper()
	var kv *mvccpb.KeyValue
	var rec instance.Record
	testkit.Eventually(t, patience, func() error {
		if kv, rec = look(t, cli, key); kv == nil || rec.State != want {
			return fmt.Errorf("%s: state %q, want %q", key, rec.State, want)
		}
		return nil
	})
	return kv, rec
}

func awaitGone(t *testing.T, cli *clientv3.Client, key string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if kv, rec := look(t, cli, key); kv != nil {
			return fmt.Errorf("%s is there: %+v", key, rec)
		}
		return nil
	})
}

// history returns the states that a key has had, and "deleted" for its deletion.
func history(t *testing.T, cli *clientv3.Client, key string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var out []string
	for resp := range cli.Watch(ctx, key, clientv3.WithRev(1)) {
		for _, ev := range resp.Events {
			if ev.Type == mvccpb.Event_DELETE {
				return append(out, "deleted")
			}
			var rec instance.Record
			require.NoError(t, json.Unmarshal(ev.Kv.Value, &rec))
			out = append(out, string(rec.State))
		}
	}
	return append(out, "(not deleted)")
}

// run runs the program inside the test process.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return program{}.run(ctx, args, stdout, stderr)
}

func testLog() logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}
