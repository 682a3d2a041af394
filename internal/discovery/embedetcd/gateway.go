package embedetcd

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	gw "go.etcd.io/etcd/api/v3/etcdserverpb/gw"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
)

// maxBody bounds a request to the gateway, in bytes. etcd accepts values of 1.5 MiB, which base64
// makes a third longer.
const maxBody = 4 << 20

// gateway translates JSON requests into etcd's gRPC API, which it calls over
// the client port like any client. It replaces the gateway of etcd, which serves the
// client port directly, so that no check can run before it.
type gateway struct {
	on   bool
	mux  atomic.Pointer[runtime.ServeMux] // nil until the etcd serves
	conn *grpc.ClientConn
}

// handlers returns the HTTP handlers of the etcd, besides those of its health, version and metrics.
func (g *gateway) handlers() map[string]http.Handler {
	return map[string]http.Handler{
		"/v3/": guard(http.HandlerFunc(g.serve)),
		// Only useful for developers of etcd.
		"/debug/": http.NotFoundHandler(),
	}
}

// connect opens the gateway onto the etcd at endpoint.
func (g *gateway) connect(endpoint string) error {
	if !g.on {
		return nil
	}
	conn, err := grpc.NewClient(endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)))
	if err != nil {
		return fmt.Errorf("connect the JSON gateway: %w", err)
	}
	g.conn = conn
	// The same encoding as etcd's own gateway: names as in its API definition,
	// unset fields left out, unknown ones ignored.
	mux := runtime.NewServeMux(runtime.WithMarshalerOption(runtime.MIMEWildcard, &runtime.HTTPBodyMarshaler{
		Marshaler: &runtime.JSONPb{
			MarshalOptions:   protojson.MarshalOptions{UseProtoNames: true},
			UnmarshalOptions: protojson.UnmarshalOptions{DiscardUnknown: true},
		},
	}))
	for _, register := range []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error{
		gw.RegisterKVHandler, gw.RegisterWatchHandler, gw.RegisterLeaseHandler, gw.RegisterAuthHandler,
	} {
		if err := register(context.Background(), mux, conn); err != nil { // which ignore the context
			return fmt.Errorf("connect the JSON gateway: %w", err)
		}
	}
	g.mux.Store(mux)
	return nil
}

func (g *gateway) serve(w http.ResponseWriter, r *http.Request) {
	if !g.on {
		refuse(w, http.StatusNotFound, "the JSON gateway of this etcd is off (--etcd-gateway=off); use gRPC, for example etcdctl")
		return
	}
	if !isGatewayPath(r.URL.Path) {
		refuse(w, http.StatusNotFound, "the JSON gateway offers kv (range, put, deleterange, txn), lease (grant, keepalive, revoke, timetolive, leases), watch and auth/authenticate; for everything else use gRPC, for example etcdctl")
		return
	}
	mux := g.mux.Load()
	if mux == nil {
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusServiceUnavailable, "etcd is starting; try again in a moment")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	mux.ServeHTTP(w, r)
}

// isGatewayPath reports whether the gateway serves a path. It serves those that a node needs to register
// with curl. For members, users, compaction and snapshots, operators use etcdctl.
func isGatewayPath(path string) bool {
	switch path {
	case "/v3/kv/range", "/v3/kv/put", "/v3/kv/deleterange", "/v3/kv/txn",
		"/v3/lease/grant", "/v3/lease/keepalive", "/v3/lease/revoke", "/v3/lease/timetolive", "/v3/lease/leases",
		"/v3/watch", "/v3/auth/authenticate":
		return true
	}
	return false
}

func (g *gateway) close() {
	if g.conn != nil {
		_ = g.conn.Close() // fails only if it is closed already
	}
}

// guard rejects requests that a web page may have sent. A page in a browser on this machine can
// send requests to a loopback address, but a cross-site POST has an Origin header, JSON needs a
// preflight request (which is not answered here), and a name that an attacker's DNS resolves to
// 127.0.0.1 is in the Host header.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case len(r.Header.Values("Origin")) > 0 || len(r.Header.Values("Sec-Fetch-Site")) > 0:
			refuse(w, http.StatusForbidden, "requests from web pages are refused (the request has an Origin or Sec-Fetch-Site header)")
		case !loopbackHost(r.Host):
			refuse(w, http.StatusForbidden, "the Host header must name this machine's loopback: use 127.0.0.1, [::1] or localhost in the URL")
		case r.Method != http.MethodPost:
			w.Header().Set("Allow", http.MethodPost)
			refuse(w, http.StatusMethodNotAllowed, "use POST with a JSON body")
		case fromCurl(r):
			r.Header.Set("Content-Type", "application/json")
			next.ServeHTTP(w, r)
		case !isMedia(r.Header.Values("Content-Type"), "application/json"):
			refuse(w, http.StatusUnsupportedMediaType, "the body must be JSON, with the header Content-Type: application/json (curl: -H 'Content-Type: application/json')")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// loopbackHost reports whether a Host header names the loopback by number or as
// localhost, with or without a port.
func loopbackHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	if strings.EqualFold(strings.TrimSuffix(name, "."), "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return err == nil && ip.Unmap().IsLoopback()
}

func isMedia(types []string, want string) bool {
	if len(types) != 1 {
		return false
	}
	media, _, err := mime.ParseMediaType(types[0])
	return err == nil && media == want
}

// fromCurl reports whether curl or wget sent a body without an explicit content type, which they
// declare as a form. A page can send forms as well, and a browser too old to send Origin would
// pass the checks above. But no page can set the User-Agent of a request without a preflight, so
// these names prove that the client is not a browser.
func fromCurl(r *http.Request) bool {
	agents := r.Header.Values("User-Agent")
	if len(agents) != 1 || !strings.HasPrefix(agents[0], "curl/") && !strings.HasPrefix(agents[0], "Wget/") {
		return false
	}
	return isMedia(r.Header.Values("Content-Type"), "application/x-www-form-urlencoded")
}

// refuse answers with an error in the format of the gateway.
func refuse(w http.ResponseWriter, status int, message string) {
	body, _ := json.Marshal(map[string]any{"code": status, "error": message, "message": message})
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the client may have closed the connection
}
