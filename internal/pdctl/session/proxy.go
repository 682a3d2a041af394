package session

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// ReadsProxy adds the flag --proxy to a command that can read the fleet from a proxy.
func (s *Session) ReadsProxy(cmd *cobra.Command) *cobra.Command {
	annotate(cmd, readsProxy)
	cmd.Flags().StringVar(&s.Proxy, "proxy", "", "read the fleet from the proxy with this URL (or that of its --admin-listen) instead of etcd, for example while etcd is down")
	return cmd
}

// readsProxy is the annotation of commands with the flag --proxy of ReadsProxy.
const readsProxy = "proxy"

// proxyHint is part of the error of a command with --proxy when etcd does not answer.
const proxyHint = "\nWhile etcd is down, a proxy still knows the fleet: repeat the command with --proxy http://HOST:PORT."

// ProxyStatus is the part of a proxy's /status that pdctl shows.
type ProxyStatus struct {
	Instances []instance.Listing `json:"instances"`
	Notices   []string           `json:"notices"`
	Revision  int64              `json:"revision"`
	ID        string             `json:"id"`
	Version   string             `json:"version"`
	// ModelRoutes has the requests that this proxy has counted.
	ModelRoutes []instance.ListedModelRoute `json:"model_routes"`

	Etcd struct {
		State       string `json:"state"`
		LastContact string `json:"last_contact"`
		LastError   string `json:"last_error"`
	} `json:"etcd"`
}

// Statuses returns the /status of each proxy, or the error of one without a URL and of one that
// does not answer within the timeout.
func (s *Session) Statuses(ctx context.Context, proxies []lease.ProxyPresence) ([]*ProxyStatus, []error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	all, errs := make([]*ProxyStatus, len(proxies)), make([]error, len(proxies))
	var work sync.WaitGroup
	for i := range proxies {
		work.Go(func() {
			var u string
			if u, errs[i] = proxies[i].BaseURL(); errs[i] == nil {
				all[i], errs[i] = s.StatusOf(ctx, u)
			}
		})
	}
	work.Wait()
	return all, errs
}

// StatusOf returns the /status of the proxy with this URL.
func (s *Session) StatusOf(ctx context.Context, base string) (*ProxyStatus, error) {
	raw, err := s.AskProxy(ctx, base, "/status", nil, nil, nil)
	if err != nil {
		return nil, err
	}
	st := &ProxyStatus{}
	if err := json.Unmarshal(raw, st); err != nil || st.ID == "" {
		return nil, fmt.Errorf("%s does not answer as a proxy of this version: %s", instance.Printable(base, 200), instance.Printable(string(raw), 200))
	}
	return st, nil
}
