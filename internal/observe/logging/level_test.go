package logging_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/observe/logging"
)

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
