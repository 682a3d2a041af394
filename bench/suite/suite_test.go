package suite_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/bench/report"
	"github.com/pdmesh/pdmesh/bench/suite"
	"github.com/pdmesh/pdmesh/bench/target"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestChoose(t *testing.T) {
	t.Parallel()
	all, err := suite.Choose(nil)
	assert.True(t, err == nil && len(all) == len(suite.Workloads())-1, "%d workloads by default, %v", len(all), err)
	got, err := suite.Choose([]string{"pick1000", "small"})
	assert.True(t, err == nil && len(got) == 2 && got[0].Name == "small" && got[1].Instances == 1000,
		"%+v, %v", got, err)
	if _, err := suite.Choose([]string{"smal"}); !errors.Is(err, suite.ErrUnknown) || !strings.Contains(err.Error(), "small, prompt2k") {
		t.Errorf("error %v, want ErrUnknown with the known names", err)
	}
}

// TestRun_Failures has targets that are not installed or do not start.
func TestRun_Failures(t *testing.T) {
	t.Parallel()
	workloads, err := suite.Choose([]string{"small", "open1000"})
	require.NoError(t, err)
	lab, err := target.NewLab(target.Options{BinDir: t.TempDir()})
	require.NoError(t, err)
	defer func() {
		assert.NoError(t, lab.Close())
	}()
	var progress strings.Builder
	run := &report.Run{Config: report.Config{Repeats: 2}}
	err = suite.Run(t.Context(), lab, suite.Options{
		Workloads: workloads, Repeats: 2, Window: time.Second, Files: 4000, Progress: &progress,
		Targets: []target.Spec{{Name: "nginx", Kind: target.Nginx, Program: "no-such-nginx"}, {Name: "smg", Kind: target.SMG, Program: "false"}},
	}, run)
	require.NoError(t, err)
	require.True(t, len(run.Cells) == 8 && strings.Count(progress.String(), "\n") == 8,
		"%d cells, want 8:\n%s", len(run.Cells), progress.String())
	for i, c := range run.Cells {
		if c.Repeat != i/4 || i%2 == 0 && c.Skipped != report.NotInstalled || i%2 == 1 && !strings.Contains(c.Skipped, "smg-") {
			t.Errorf("cell %d: %+v", i, c)
		}
	}
	assert.True(t, len(run.Notes) == 1 && strings.Contains(run.Notes[0], "open1000 ran with 500 clients"),
		"notes %q", run.Notes)
}
