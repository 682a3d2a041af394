package logging_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/observe/logging"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestNewLevels(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, level string
		want        logrus.Level
	}{
		{"empty means info", "", logrus.InfoLevel},
		{"error", "error", logrus.ErrorLevel},
		{"warn", "warn", logrus.WarnLevel},
		{"warning", "warning", logrus.WarnLevel},
		{"info", "info", logrus.InfoLevel},
		{"debug", "debug", logrus.DebugLevel},
		{"trace", "trace", logrus.TraceLevel},
		{"upper case", "DEBUG", logrus.DebugLevel},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			log, err := logging.New(&bytes.Buffer{}, tt.level, "")
			require.NoError(t, err)
			assert.Equal(t, tt.want, log.GetLevel())
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"loud", "fatal", "panic", " info"} {
		_, err := logging.New(&bytes.Buffer{}, level, "text")
		assert.ErrorContains(t, err, fmt.Sprintf("unknown log level %q: use error, warn, info, debug, trace", level))
	}
	_, err := logging.New(&bytes.Buffer{}, "info", "xml")
	assert.ErrorContains(t, err, `unknown log format "xml": use text or json`)
}

func TestTextKeepsOneLinePerEntry(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := logging.New(&out, "info", "text")
	require.NoError(t, err)
	log.WithField(logging.FieldInstance, "10.0.0.1:8000\x1b[31m\nlevel=error").Info("first\nsecond")
	log.Debug("not shown")
	assert.Equal(t, 1, strings.Count(out.String(), "\n"),
		"lines, want 1: a value must not be able to forge a line: %q", out.String())
	assert.NotContains(t, out.String(), "\x1b")
	assert.Contains(t, out.String(), "instance=")
}

func TestJSONLinesParse(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := logging.New(&out, "info", "json")
	require.NoError(t, err)
	log.WithField(logging.FieldRevision, 42).WithError(errors.New("lease lost")).Warn("registering again")
	var line map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &line), "in %q", out.String())
	want := map[string]any{"level": "warning", "msg": "registering again", logging.FieldRevision: 42.0, logrus.ErrorKey: "lease lost"}
	for k, v := range want {
		assert.Equal(t, v, line[k], k)
	}
}

func TestKeepRecent(t *testing.T) {
	t.Parallel()
	log, err := logging.New(io.Discard, "info", "text")
	require.NoError(t, err)
	log.Info("before")
	recent := logging.KeepRecent(log)
	for i := range 5000 {
		log.WithField("n", i).Info(strings.Repeat("x", 200))
	}
	got := string(recent())
	if len(got) > 256<<10 || len(got) < 250<<10 || !strings.HasPrefix(got, "time=") || !strings.HasSuffix(got, " n=4999\n") {
		t.Errorf("%d bytes, %.80q ... %.80q", len(got), got, got[max(0, len(got)-80):])
	}
	log.Info(strings.Repeat("y", 1<<20))
	log.Info("after")
	if got := string(recent()); len(got) > 256<<10 || !strings.Contains(got, "msg=after\n") || strings.Contains(got, "msg=yyy") {
		t.Errorf("after a line above the limit: %d bytes, %.80q", len(got), got)
	}
}

func TestLevel_ConcurrentChange(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := logging.New(&out, "warn", "text")
	require.NoError(t, err)
	level := logging.NewLevel(log)
	entry := log.WithField("component", "x") // created before the change
	entry.Debug("before")
	for _, step := range []struct {
		do   func() error
		want string
	}{
		{func() error { return level.Set("DEBUG") }, "debug"},
		{func() error { entry.Debug("during"); return nil }, "debug"},
		{func() error { level.More(); return nil }, "trace"},
		{func() error { level.More(); return nil }, "trace"},
		{func() error { level.Reset(); return nil }, "warn"},
		{func() error { entry.Debug("after"); return nil }, "warn"},
		{func() error { return level.Set("error") }, "error"},
		{func() error { level.More(); return nil }, "warn"},
	} {
		if err := step.do(); err != nil || level.Name() != step.want {
			t.Errorf("level %s, want %s; %v", level.Name(), step.want, err)
		}
	}
	err = level.Set("loud")
	require.ErrorContains(t, err, `unknown log level "loud"`)
	assert.Equal(t, "warn", level.Name())
	got := out.String()
	if strings.Contains(got, "before") || !strings.Contains(got, "during") || strings.Contains(got, "after") {
		t.Errorf("the log:\n%s", got)
	}
	assert.Equal(t, 5, strings.Count(got, "the log level is"), "changes are logged:\n%s", got)
}
