package embedetcd

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"go.uber.org/zap"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// logged returns a logger for etcd, and a function that returns the lines written since its last call.
func logged(level logrus.Level) (s *Server, l *zap.Logger, lines func() string) {
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	log.SetLevel(level)
	s = &Server{quiet: new(atomic.Bool)}
	return s, s.logger(log, nil), func() string {
		defer out.Reset()
		return out.String()
	}
}

// TestLog_Warnings: important warnings of etcd become messages with fields.
// None contains the text of a request or a number without a unit.
func TestLog_Warnings(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		warning string
		fields  []zap.Field
		want    string // "" for a line of level debug
	}{
		{"slow fdatasync", []zap.Field{zap.Duration("took", 2714159265), zap.Duration("expected-duration", time.Second)},
			`msg="etcd is slow: fdatasync took 2.7 s, expected 1 s" expected=1s took=2.714159265s`},
		{"apply request took too long", []zap.Field{
			zap.Duration("took", 250*time.Millisecond), zap.Duration("expected-duration", 100*time.Millisecond), zap.String("prefix", "read-only range "),
			zap.String("request", `key:"/pd/prefill/" range_end:"/pd/prefill0" `), zap.String("response", "range_response_count:2 size:700"),
		}, `msg="etcd is slow: a request took 250 ms, expected 100 ms" expected=100ms took=250ms`},
		{"leader failed to send out heartbeat on time; took too long, leader is overloaded likely from slow disk", []zap.Field{
			zap.String("to", "8e9e05c52164694d"), zap.Duration("heartbeat-interval", 100*time.Millisecond), zap.Duration("exceeded-duration", 1500*time.Millisecond),
		}, `msg="etcd is slow: its heartbeat was 1.5 s late" late=1.5s`},
		{"waiting for ReadIndex response took too long, retrying", []zap.Field{zap.Uint64("sent-request-id", 7), zap.Duration("retry-timeout", 500*time.Millisecond)},
			`msg="etcd is slow: a read has waited for 500 ms" waited=500ms`},
		{"message exceeded backend quota; raising alarm", []zap.Field{zap.Int64("quota-size-bytes", 1<<30), zap.String("quota-size", "1.1 GB")},
			`msg="etcd is full: it refuses writes until there is space again" limit="1.1 GB"`},
		{"failed to apply request", []zap.Field{zap.Duration("took", 12345), zap.String("request", `header:<ID:1 > put:<key:"k" value_size:9 >`), zap.Error(errors.New("no space"))},
			`msg="etcd refused a request" error="no space"`},
		{"failed to apply request", []zap.Field{zap.String("request", "lease_grant:<>"), zap.Error(errors.New("lease already exists"))}, ""},
		{"Failed to detect schema version", []zap.Field{zap.Error(errors.New("missing term information"))}, ""},
		{"simple token is not cryptographically signed", nil, ""},
	} {
		_, l, lines := logged(logrus.InfoLevel)
		l.Warn(tc.warning, tc.fields...)
		switch got := lines(); {
		case tc.want == "" && got != "":
			t.Errorf("%s: %s", tc.warning, got)
		case !strings.Contains(got, tc.want) || tc.want != "" && !strings.Contains(got, "level=warning"):
			t.Errorf("%s: %s, want %s", tc.warning, got, tc.want)
		}
		if tc.want != "" {
			continue
		}
		_, l, lines = logged(logrus.DebugLevel)
		l.Warn(tc.warning, tc.fields...)
		testkit.Contains(t, lines(), "level=debug", tc.warning)
	}
}

// TestLog_Errors: errors become warnings of the proxy, with readable durations.
func TestLog_Errors(t *testing.T) {
	t.Parallel()
	s, l, lines := logged(logrus.InfoLevel)
	l.Error("failed to purge", zap.Duration("took", 1500*time.Millisecond), zap.Error(errors.New("no space")))
	testkit.Contains(t, lines(), "level=warning", "took=1.5s", "no space")
	l.Error("failed to update storage version", zap.Error(errors.New("missing term information")))
	assert.Equal(t, "", lines(), "before the first write")
	s.quiet.Store(true)
	l.Error("failed to purge")
	l.Warn("slow fdatasync")
	assert.Equal(t, "", lines(), "after the end")
}

// TestLog_Repeated: a slow disk causes a line every ten seconds, not one for each request.
func TestLog_Repeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, l, lines := logged(logrus.InfoLevel)
		for range 100 {
			l.Warn("slow fdatasync", zap.Duration("took", 2*time.Second), zap.Duration("expected-duration", time.Second))
			time.Sleep(time.Second)
		}
		got := lines()
		assert.Equal(t, 10, strings.Count(got, "\n"), "lines: %s", got)
	})
}
