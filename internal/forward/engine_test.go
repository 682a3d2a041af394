package forward_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// wireEngine is an engine that answers every POST with these bytes and keeps the connection open. left gets a
// value for each connection that the proxy has closed.
func wireEngine(t *testing.T, role instance.Role, says string) (engine *instance.Instance, left <-chan struct{}) {
	t.Helper()
	answer := testkit.RawAnswers(func(c net.Conn, r *http.Request, _ int) bool {
		text := says
		if r.Method != http.MethodPost { // a probe
			text = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
		}
		_, err := io.WriteString(c, text)
		return err == nil
	})
	ended := make(chan struct{}, 1024)
	address := testkit.RawServer(t, func(n int, c net.Conn) {
		answer(n, c)
		ended <- struct{}{}
	})
	return instanceAt(role, address, fakevllm.Plain), ended
}

// postWithin is post with a time limit, for a request that may not end.
func (r *rig) postWithin(path, body string) answer {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), waitLimit)
	defer cancel()
	return r.postCtx(ctx, path, body)
}

// withEngine adds odd to the membership. If beside is false, odd replaces the good engines of its role.
func (r *rig) withEngine(odd *instance.Instance, beside bool) {
	list := slices.Clone(r.members.Snapshot().All())
	if !beside {
		list = slices.DeleteFunc(list, func(in *instance.Instance) bool { return in.Role == odd.Role })
	}
	r.members.set(append(list, odd)...)
}

// The status of an error is enough to try another instance: the proxy does not wait for the body.
func TestStalledErrorOfOneInstance(t *testing.T) {
	t.Parallel()
	for _, role := range instance.Roles() {
		t.Run(string(role), func(t *testing.T) {
			t.Parallel()
			r := start(t, fakevllm.Plain, 1, 1, func(o *forward.Options) {
				o.NonStream, o.Idle, o.Prefill, o.FirstByte = time.Hour, time.Hour, time.Hour, time.Hour
			})
			odd, left := wireEngine(t, role, "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 100\r\n\r\n{")
			r.withEngine(odd, true)
			for i := range 4 {
				body := chatBody(i%2 == 1, "")
				r.checkComplete(r.postWithin("/v1/chat/completions", body), true, body)
			}
			assert.Contains(t, r.rec.retried(), string(role)+"/status_5xx")
			await(t, "the end of the connection", left)
		})
	}
}

// The proxy waits for the body of an error that it passes on, but no longer than for the next bytes of any
// answer. After that, the client gets only the status.
func TestStalledErrorOfTheClient(t *testing.T) {
	t.Parallel()
	for _, role := range instance.Roles() {
		for _, path := range []string{"/v1/chat/completions", "/v1/embeddings"} {
			if role == instance.Prefill && path == "/v1/embeddings" {
				continue // a decode instance answers it
			}
			t.Run(string(role)+path, func(t *testing.T) {
				t.Parallel()
				r := start(t, fakevllm.Plain, 1, 1, func(o *forward.Options) {
					o.NonStream, o.Idle, o.Prefill, o.FirstByte = time.Hour, 100*time.Millisecond, time.Hour, time.Hour
				})
				odd, _ := wireEngine(t, role, "HTTP/1.1 422 Unprocessable Content\r\nContent-Length: 100\r\nContent-Type: text/x-odd\r\n\r\n{")
				r.withEngine(odd, false)
				a := r.postWithin(path, chatBody(false, ""))
				if a.status != http.StatusUnprocessableEntity || !strings.Contains(string(a.body), "could not be read") || a.header.Get("Content-Type") != "application/json" {
					t.Errorf("%d %v %s, %v", a.status, a.header, a.body, a.err)
				}
			})
		}
	}
}

// Fields that an engine names in Connection concern its connection with the proxy and do not reach the
// client: in the first answer, in later ones with a remembered header, and in errors.
func TestFieldsOfTheEnginesConnection(t *testing.T) {
	t.Parallel()
	const fields = "Connection: keep-alive, x-hop\r\nConnection: X-Other-Hop , ,\r\nX-Hop: secret\r\nX-Hop: secret too\r\nX-Other-Hop: secret\r\nX-End: kept\r\n"
	for status, text := range map[int]string{
		200: "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + fields + "Content-Length: 2\r\n\r\n{}",
		400: "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n" + fields + "Content-Length: 2\r\n\r\n{}",
	} {
		r := start(t, fakevllm.Plain, 1, 0, nil)
		odd, _ := wireEngine(t, instance.Decode, text)
		r.withEngine(odd, false)
		for i := range 5 {
			for _, path := range []string{"/v1/chat/completions", "/v1/embeddings"} {
				a := r.postWithin(path, chatBody(false, ""))
				require.True(t, a.status == status && a.header.Get("X-End") == "kept",
					"%s: %d %v %s, %v", path, a.status, a.header, a.body, a.err)
				assert.Equal(t, 0, len(a.header["X-Hop"])+len(a.header["X-Other-Hop"]),
					"request %d to %s, status %d: %v", i, path, status, a.header)
			}
		}
	}
}

// Servers may take _ for - (WSGI does): a header that must not reach an engine must not
// reach it in that spelling either.
func TestControlHeaders_AnySpelling(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 1, 1, nil)
	names := []string{
		"X-Data-Parallel-Rank", "X_Data_Parallel_Rank", "x_data_parallel-rank", "X-DATA_PARALLEL_RANK", "X-Data-Parallel-Host-Port",
		"X_Prefiller_Host_Port", "x-prefiller_url", "X_PD_Trace", "x_pd-prefill", "X-Vllm-Priority", "x_vllm_priority",
		"X_Request_Id", "x-request_id", "X_Api_Key", "Keep_Alive", "Proxy_Authorization", "Transfer_Encoding", "Content_Length",
		"X-Encoder-Hosts-Ports", "x_kv_cache_source_host_port",
	}
	for i := range 3 { // later requests use the remembered header
		q := newRequest(t.Context(), t, http.MethodPost, r.URL+chatPath, strings.NewReader(chatBody(false, "")))
		q.Header["x_end_to_end"] = []string{"kept"}
		for _, name := range names {
			q.Header[name] = []string{"7"}
		}
		do(http.DefaultClient, q).require(t, http.StatusOK)
		for _, s := range []*fakevllm.Server{r.P[0], r.D[0]} {
			seen := posted(s)[i]
			kept := false
			for name, values := range seen.Header {
				plain := strings.ToLower(strings.ReplaceAll(name, "_", "-"))
				kept = kept || plain == "x-end-to-end"
				for _, v := range values {
					assert.NotEqual(t, "7", v, "request %d: %s got %s", i, s.Address(), name)
				}
			}
			assert.True(t, kept, "request %d: %s did not get x_end_to_end: %v", i, s.Address(), seen.Header)
		}
	}
}
