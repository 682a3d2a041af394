package proxy

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/config"
	"github.com/pdmesh/pdmesh/internal/lmcache"
	"github.com/pdmesh/pdmesh/internal/netguard"
)

// notices hear what LMCache's prefill instances notify: at their agents, and at a
// socket of this proxy where --lmcache-notify asks for one.
type notices struct {
	asker    *lmcache.Asker
	receiver *lmcache.Receiver // nil without --lmcache-notify
	client   *http.Transport
}

// maxNoticeConns bounds the idle connections to one agent.
const maxNoticeConns = 64

func openNotices(ctx context.Context, cfg *config.Proxy, log logrus.FieldLogger) (*notices, error) {
	dialer := &net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: 15 * time.Second, Control: netguard.New(cfg.InstanceAllow).Control}
	n := &notices{client: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: maxNoticeConns, IdleConnTimeout: time.Minute}}
	n.asker = &lmcache.Asker{HTTP: &http.Client{Transport: n.client}}
	if cfg.LMCacheNotify == "" {
		return n, nil
	}
	n.asker.Own = lmcache.NewInbox()
	var err error
	n.receiver, err = lmcache.Listen(ctx, cfg.LMCacheNotify, n.asker.Own, log.WithField("component", "lmcache"))
	if err != nil {
		return nil, err
	}
	log.Infof("LMCache's notifications are taken at tcp://%s: that is right for a single proxy; with several, the agents must take them", n.receiver.Addr())
	return n, nil
}

func (n *notices) close() {
	if n.receiver != nil {
		n.receiver.Close()
	}
	n.client.CloseIdleConnections()
}
