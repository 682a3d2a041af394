package proxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/config"
)

// A request of which two readers could see the end in two places gets 400, and the
// connection ends, whichever server is chosen.
func TestDoubtfulRequests(t *testing.T) {
	t.Parallel()
	const long = 30 * time.Second
	for _, kind := range []string{config.ServerOwn, config.ServerStd} {
		for name, fields := range map[string]string{
			"a length and chunks": "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
			"two equal lengths":   "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
			"a folded line":       "Content-Length: 2\r\nX-A: a\r\n b\r\n\r\n{}",
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				served := func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }
				log := logrus.New()
				log.SetOutput(io.Discard)
				p := &app{
					cfg: &config.Proxy{Requests: config.Requests{Server: kind}}, log: log, router: http.HandlerFunc(served),
					direct: map[string]http.HandlerFunc{"/v1/completions": served},
				}
				srv := p.clientServer(nil)
				ln, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() { ended <- srv.Serve(ln) }()
				defer func() { _ = srv.Close(); <-ended }()
				c, err := net.Dial("tcp", ln.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = c.Close() }()
				_ = c.SetDeadline(time.Now().Add(long))
				in := bufio.NewReader(c)
				const head = "POST /v1/completions HTTP/1.1\r\nHost: h\r\n"
				for _, want := range []int{http.StatusOK, http.StatusBadRequest} {
					text := head + "Content-Length: 2\r\n\r\n{}"
					if want == http.StatusBadRequest {
						text = head + fields
					}
					if _, err := io.WriteString(c, text); err != nil {
						t.Fatal(err)
					}
					resp, err := http.ReadResponse(in, nil)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != want {
						t.Fatalf("%s, want %d: %v", resp.Status, want, err)
					}
				}
				if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
					t.Errorf("the connection goes on: %v", err)
				}
			})
		}
	}
}
