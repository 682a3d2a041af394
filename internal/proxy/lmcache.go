package proxy

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/engine/lmcache"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/transport/netguard"
)

// lmcacheNotices receives the notifications of LMCache's prefill instances: from their
// agents, and at a socket of this proxy with --lmcache-notify.
type lmcacheNotices struct {
	waiter   *lmcache.Waiter
	receiver *lmcache.Receiver // nil without --lmcache-notify
	client   *http.Transport
}

// maxNoticeConns bounds the idle connections to one agent.
const maxNoticeConns = 64

func openLMCacheNotices(ctx context.Context, cfg *config.Proxy, log logrus.FieldLogger) (*lmcacheNotices, error) {
	dialer := &net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: 15 * time.Second, Control: netguard.New(cfg.InstanceAllow).Control}
	n := &lmcacheNotices{client: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: maxNoticeConns, IdleConnTimeout: time.Minute}}
	n.waiter = &lmcache.Waiter{HTTP: &http.Client{Transport: n.client}}
	if cfg.LMCacheNotify == "" {
		return n, nil
	}
	n.waiter.Own = lmcache.NewInbox()
	var err error
	n.receiver, err = lmcache.Listen(ctx, cfg.LMCacheNotify, n.waiter.Own, log.WithField("component", "lmcache"))
	if err != nil {
		return nil, err
	}
	n.waiter.OwnAddress = "tcp://" + n.receiver.Addr().String()
	log.Infof("receiving LMCache notifications at tcp://%s; with several proxies, the agents must receive them instead", n.receiver.Addr())
	return n, nil
}

func (n *lmcacheNotices) close() {
	if n.receiver != nil {
		n.receiver.Close()
	}
	n.client.CloseIdleConnections()
}
