package embedetcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

const (
	// examineTimeout bounds the examination of a taken port that does not respond: an etcd
	// that was just started accepts connections a second or two before it answers them.
	examineTimeout = 10 * time.Second
	examinePause   = 200 * time.Millisecond
	askTimeout     = 2 * time.Second
)

// errFree is returned if no process listens at the port any more.
var errFree = errors.New("the port is free again")

// errSilent is returned if the server has not answered yet.
var errSilent = errors.New("no answer")

// examine identifies the server at a taken address. It returns ErrJoin, ErrPortTaken with a
// remedy, errFree, or the error of ctx.
func examine(ctx context.Context, address string, l schema.Layout) error {
	bounded, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	for {
		err := ask(bounded, address, l)
		if !errors.Is(err, errSilent) {
			return err
		}
		if !sleep.For(bounded, examinePause) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return taken(address, "something takes connections there but answers neither as etcd nor as HTTP within "+examineTimeout.String())
		}
	}
}

func taken(address, what string) error {
	return fmt.Errorf("%w: %s: %s; stop it, choose another port with --etcd-listen, or name your etcd with --etcd-endpoints", ErrPortTaken, address, what)
}

// ask examines the port once, first with plain HTTP, which identifies other servers immediately.
func ask(ctx context.Context, address string, l schema.Layout) error {
	what, err := askHTTP(ctx, address)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return errFree
	case err != nil && what == "":
		// No answer, or not HTTP/1: it may be an etcd that serves gRPC only.
		return askEtcd(ctx, address, l, "")
	case what == "":
		return askEtcd(ctx, address, l, "etcd")
	default:
		return taken(address, what)
	}
}

// askHTTP requests etcd's version page. what describes the server if it is not etcd; it is ""
// if it is etcd, or if there was no answer (err).
func askHTTP(ctx context.Context, address string) (what string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/version", nil)
	if err != nil {
		return "", err
	}
	tr := &http.Transport{Proxy: nil, DisableKeepAlives: true, DialContext: (&net.Dialer{}).DialContext}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return "", err
	}
	var version struct {
		Server string `json:"etcdserver"`
	}
	if json.Unmarshal(body, &version) == nil && version.Server != "" {
		return "", nil
	}
	if resp.StatusCode == http.StatusBadRequest && strings.Contains(string(body), "HTTPS") {
		return "a server that speaks TLS answers there (if it is your etcd, set --etcd-endpoints https://" + address + " and its certificate)", nil
	}
	what = "an HTTP server that is not etcd answers there"
	if name := resp.Header.Get("Server"); name != "" {
		what += " (it calls itself " + instance.Printable(name, 60) + ")"
	}
	return what, nil
}

// askEtcd reads over gRPC which keys are below our root. known is "etcd" if the HTTP
// answer has identified the server as etcd.
func askEtcd(ctx context.Context, address string, l schema.Layout, known string) error {
	cli, err := etcd.Dial(etcd.Config{Endpoints: []string{address}})
	if err != nil {
		return taken(address, err.Error())
	}
	defer cli.Close()
	cctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	resp, err := cli.Txn(cctx).Then(
		clientv3.OpGet(l.Schema()),
		clientv3.OpGet(l.Root(), clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1000)),
	).Commit()
	switch {
	case err == nil:
		schema, keys := etcd.Single(resp.Responses[0].GetResponseRange().Kvs), resp.Responses[1].GetResponseRange().Kvs
		if err := etcd.CheckSchema(l, schema); err != nil {
			return taken(address, "an etcd serves there, but "+err.Error())
		}
		if schema == nil {
			for _, kv := range keys {
				if !l.Owns(string(kv.Key)) {
					return taken(address, fmt.Sprintf("an etcd serves there, but under %s it has keys of another program (%s); another --etcd-prefix would do",
						l.Root(), instance.Printable(string(kv.Key), 80)))
				}
			}
		}
		return fmt.Errorf("%w: %s", ErrJoin, address)
	case errors.Is(err, rpctypes.ErrUserEmpty), errors.Is(err, rpctypes.ErrPermissionDenied):
		return taken(address, "an etcd with passwords serves there; use it with --etcd-endpoints and a user name")
	case ctx.Err() == nil && known != "" && !errors.Is(err, context.DeadlineExceeded):
		return taken(address, "an etcd serves there, but it fails: "+instance.Printable(err.Error(), 200))
	default:
		return errSilent
	}
}
