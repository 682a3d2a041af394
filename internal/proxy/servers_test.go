package proxy

import (
	"io"
	"net/http"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

// Errors that net/http reports are logged at level debug, not written to standard error.
func TestServerLog(t *testing.T) {
	t.Parallel()
	var out testkit.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	log.SetLevel(logrus.DebugLevel)
	s := newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.WriteHeader(http.StatusOK)
		_, err := io.WriteString(w, r.Proto)
		assert.NoError(t, err)
	}), log)
	ln := testkit.Listen(t)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ln) }()
	defer func() { _ = s.Close(); <-ended }()
	resp, err := testkit.Ask(t.Context(), &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, http.MethodGet, "http://"+ln.Addr().String(), "")
	require.NoError(t, err)
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "HTTP/1.1" {
		t.Errorf("%s, %v", b, err)
	}
	testkit.Contains(t, out.String(), "level=debug", "superfluous", "component=http")
}

func TestMain(m *testing.M) { leak.Main(m) }
