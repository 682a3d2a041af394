package embedetcd

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sirupsen/logrus"
	"go.uber.org/zap"
)

// What is no trouble is not told; all else is, also when it begins the same.
func TestLinesOfEtcd(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	s := &Server{quiet: new(atomic.Bool)}
	l := s.logger(log, nil)
	l.Warn("failed to apply request", zap.Error(errors.New("lease already exists")))
	l.Warn("Failed to detect schema version", zap.Error(errors.New("missing term information")))
	if out.Len() > 0 {
		t.Errorf("told: %s", out.String())
	}
	l.Warn("failed to apply request", zap.Error(errors.New("no space")))
	l.Warn("slow fdatasync")
	if got := out.String(); !strings.Contains(got, "no space") || !strings.Contains(got, "slow fdatasync") {
		t.Errorf("not told: %q", got)
	}
	out.Reset()
	s.quiet.Store(true)
	l.Warn("slow fdatasync")
	if out.Len() > 0 {
		t.Errorf("told after the end: %s", out.String())
	}
}
