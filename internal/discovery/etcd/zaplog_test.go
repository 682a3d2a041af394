package etcd_test

import (
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
)

// described counts its calls of String.
type described struct{ times int }

func (d *described) String() string { d.times++; return "described" }

// TestZapLogger_LevelCheckedFirst proves that no entry is formatted for a
// disabled level, and checks the level of each written entry.
func TestZapLogger_LevelCheckedFirst(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		level logrus.Level
		limit zapcore.Level
		want  []logrus.Level // for a debug, info, warning and error entry
	}{
		{"information", logrus.InfoLevel, zapcore.WarnLevel, []logrus.Level{logrus.WarnLevel, logrus.WarnLevel}},
		{"all", logrus.DebugLevel, zapcore.ErrorLevel, []logrus.Level{logrus.DebugLevel, logrus.DebugLevel, logrus.WarnLevel, logrus.ErrorLevel}},
		{"nothing above debugging", logrus.InfoLevel, zapcore.DebugLevel, nil},
		{"all, as debugging", logrus.DebugLevel, zapcore.DebugLevel, []logrus.Level{logrus.DebugLevel, logrus.DebugLevel, logrus.DebugLevel, logrus.DebugLevel}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			log, hook := test.NewNullLogger()
			log.SetLevel(tt.level)
			var d described
			zl := etcd.ZapLogger(log.WithField("part", "etcd"), tt.limit).With(zap.String("with", "more"))
			for _, l := range []zapcore.Level{zapcore.DebugLevel, zapcore.InfoLevel, zapcore.WarnLevel, zapcore.ErrorLevel} {
				zl.Log(l, "said", zap.Stringer("what", &d))
			}
			assert.Equal(t, len(tt.want), d.times, "entries put together")
			entries := hook.AllEntries()
			require.Equal(t, len(tt.want), len(entries))
			for i, e := range entries {
				if e.Level != tt.want[i] || e.Message != "said" || e.Data["what"] != "described" || e.Data["part"] != "etcd" || e.Data["with"] != "more" {
					t.Errorf("entry %d: %s %q %v, want %s", i, e.Level, e.Message, e.Data, tt.want[i])
				}
			}
		})
	}
}
