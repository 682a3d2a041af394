package program

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/agent/setup"
	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/engine/lmcache"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// relayNotices receives LMCache's notifications and serves them to proxies, until stop is
// called. It adds its ports to the record.
func relayNotices(ctx context.Context, c *setup.Config, log logrus.FieldLogger) (stop func(), err error) {
	if c.Notices.Endpoint == "" {
		return func() {}, nil
	}
	inbox := lmcache.NewInbox()
	receiver, err := lmcache.Listen(ctx, c.Notices.Endpoint, inbox, log)
	if err != nil {
		return nil, err
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Notices.Listen)
	if err != nil {
		receiver.Close()
		return nil, fmt.Errorf("listen for proxies (--lmcache-notify-listen): %w", err)
	}
	s := &http.Server{Handler: lmcache.Handler(inbox), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 5 * time.Minute}
	wait := background.Start(ctx, func(context.Context) { _ = s.Serve(ln) }) // ends with Close
	if c.Facts.Ports == nil {
		c.Facts.Ports = map[string][]int{}
	}
	c.Facts.Ports[instance.PortLMCacheNotify] = []int{ln.Addr().(*net.TCPAddr).Port}     //nolint:forcetypeassert // a TCP listener's
	c.Facts.Ports[instance.PortLMCachePull] = []int{receiver.Addr().(*net.TCPAddr).Port} //nolint:forcetypeassert // a TCP listener's
	log.Infof("receiving LMCache notifications at tcp://%s; proxies read them at %s", receiver.Addr(), ln.Addr())
	return func() { _ = s.Close(); wait(); receiver.Close() }, nil
}
