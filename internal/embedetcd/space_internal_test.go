package embedetcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// While the disk is short etcd takes nothing new, before a write fails and ends
// it; leases that are there are renewed. With room again it takes everything, also
// after a start.
func TestDiskShort(t *testing.T) {
	t.Parallel()
	cfg := Config{ListenClient: "127.0.0.1:0", DataDir: t.TempDir(), Unsynced: true}
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	cli := s.Client()
	lease, err := cli.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	var free atomic.Uint64
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	watch := &space{
		server: s.etcd.Server, dir: cfg.DataDir, log: log, every: time.Millisecond,
		room: func(string) (uint64, uint64, error) { return free.Load(), 10 << 30, nil },
	}
	free.Store(20 << 20)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { watch.run(ctx); close(done) }()
	await := func(cond func() error) {
		t.Helper()
		limit := time.NewTimer(time.Minute)
		defer limit.Stop()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for err := cond(); err != nil; err = cond() {
			select {
			case <-tick.C:
			case <-limit.C:
				t.Fatal(err)
			}
		}
	}
	await(func() error {
		if _, err := cli.Put(t.Context(), "/k", "v"); !errors.Is(err, rpctypes.ErrNoSpace) {
			return fmt.Errorf("a put with the disk short: %w", err)
		}
		return nil
	})
	if _, err := cli.KeepAliveOnce(t.Context(), lease.ID); err != nil {
		t.Errorf("a renewal with the disk short: %v", err)
	}
	if _, err := cli.Delete(t.Context(), "/", clientv3.WithPrefix()); err != nil {
		t.Errorf("a deletion with the disk short: %v", err)
	}
	free.Store(5 << 30)
	await(func() error { _, err := cli.Put(t.Context(), "/k", "v"); return err })
	free.Store(20 << 20)
	await(func() error {
		if _, err := cli.Put(t.Context(), "/k", "v"); !errors.Is(err, rpctypes.ErrNoSpace) {
			return fmt.Errorf("a put with the disk short again: %w", err)
		}
		return nil
	})
	stop()
	<-done
	if text := out.String(); !strings.Contains(text, "only 20 MiB are left for "+cfg.DataDir) || !strings.Contains(text, "takes everything again") {
		t.Errorf("log: %s", text)
	}
	_ = cli.Close() // its context has ended with the server
	s.Close()
	s, err = Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	cli = s.Client()
	defer cli.Close()
	await(func() error { _, err := cli.Put(t.Context(), "/k", "v"); return err })
}
