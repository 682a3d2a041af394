package version

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSource(t *testing.T) {
	t.Parallel()
	const revision = "0123456789abcdef0123456789abcdef01234567"
	vcs := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: revision}, {Key: "vcs.modified", Value: modified}}
	}
	for name, c := range map[string]struct {
		module   string
		settings []debug.BuildSetting
		want     string
	}{
		"no build information":      {"", nil, ""},
		"a tree without git":        {"(devel)", nil, ""},
		"a clone":                   {"(devel)", vcs("false"), "0123456789ab"},
		"a changed clone":           {"(devel)", vcs("true"), "0123456789ab-dirty"},
		"a clone that Go describes": {"v0.0.0-20261124172052-0123456789ab+dirty", vcs("true"), "0123456789ab-dirty"},
		"a tagged clone":            {"v" + Version, vcs("false"), "0123456789ab"},
		"installed, this release":   {"v" + Version, nil, ""},
		"installed, before any tag": {"v0.0.0-20261124172052-c8e065a12345", nil, "c8e065a12345"},
		"installed, after a tag":    {"v0.1.1-0.20261124172052-c8e065a12345", nil, "c8e065a12345"},
		"installed, after a rc tag": {"v0.2.0-rc.1.0.20261124172052-c8e065a12345", nil, "c8e065a12345"},
		"installed, another tag":    {"v0.2.0-rc.1", nil, "0.2.0-rc.1"},
	} {
		info := &debug.BuildInfo{Main: debug.Module{Path: "github.com/pdmesh/pdmesh", Version: c.module}, Settings: c.settings}
		assert.Equal(t, c.want, source(info), name)
	}
}
