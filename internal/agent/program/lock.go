package program

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/agent/setup"
	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// lockPoll is the pause between two attempts to get the lock.
const lockPoll = 500 * time.Millisecond

// lock makes this the only agent of its instance in this network namespace: of two agents
// of one engine, the later one would take the key from the other. It waits while another
// agent runs, such as a predecessor that still drains. It returns nil if ctx ends first.
//
// The lock is a listening socket with an abstract name. Such a name exists in one network
// namespace, as an address does, and disappears when its process ends for any reason. Only
// Linux has abstract names; on other systems lock does nothing.
func lock(ctx context.Context, c setup.Config, log logrus.FieldLogger) (held locks, err error) {
	held = locks{}
	if runtime.GOOS != "linux" {
		return held, nil
	}
	for _, k := range c.Key.Each() {
		l, err := lockKey(ctx, c, k, log)
		if l == nil {
			held.release()
			return nil, err
		}
		held = append(held, l)
	}
	return held, nil
}

// locks has a lock for each key of an agent.
type locks []net.Listener

func (l locks) release() {
	for _, one := range l {
		_ = one.Close()
	}
}

// lockKey takes the lock of one key.
func lockKey(ctx context.Context, c setup.Config, k instance.Key, log logrus.FieldLogger) (net.Listener, error) {
	what := strings.Join(append([]string{k.String(), c.HostID, c.EtcdPrefix}, c.EtcdEndpoints...), "\x00")
	sum := sha256.Sum256([]byte(what))
	name := "@pd-agent-" + hex.EncodeToString(sum[:16])
	warned := false
	for {
		l, err := (&net.ListenConfig{}).Listen(ctx, "unix", name)
		switch {
		case err == nil:
			return l, nil
		case ctx.Err() != nil:
			return nil, nil //nolint:nilerr // only the context has ended
		case !errors.Is(err, syscall.EADDRINUSE):
			return nil, fmt.Errorf("lock %s: %w", k, err)
		case !warned:
			warned = true
			log.Warnf("another agent of %s runs here already; waiting for it to end", k)
		}
		if !sleep.For(ctx, lockPoll) {
			return nil, nil
		}
	}
}
