package setup

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// lmcachePage returns the configuration files and the agent's commands from the page.
func lmcachePage(t *testing.T) (dir string, commands []string) {
	t.Helper()
	raw := testkit.ReadFile(t, "../../../docs/connectors/lmcache.md")
	page := string(raw)
	dir = t.TempDir()
	files := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(page, -1)
	for i, name := range []string{"prefill.yaml", "decode.yaml"} {
		testkit.WriteFile(t, filepath.Join(dir, name), files[i][1])
	}
	for line := range strings.SplitSeq(strings.ReplaceAll(page, "\\\n", " "), "\n") {
		if strings.HasPrefix(line, "pdmesh-agent ") {
			commands = append(commands, line)
		}
	}
	return dir, commands
}

// Every agent command on the page is accepted, and yields the ports and
// the endpoint of notifications, with and without the engine's command.
func TestLMCachePage(t *testing.T) {
	t.Parallel()
	dir, commands := lmcachePage(t)
	require.Len(t, commands, 4)
	for _, line := range commands {
		line = strings.ReplaceAll(line, "LMCACHE_CONFIG_FILE=", "LMCACHE_CONFIG_FILE="+dir+"/")
		args := strings.Fields(strings.ReplaceAll(line, "'", ""))[1:]
		c, err := loadArgs(t, nil, append([]string{"--host-id=h"}, args...)...)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		assert.Equal(t, "lmcache", c.connector, "%s: connector", line)
		if c.Key.Role == instance.Prefill {
			assert.Equal(t, "tcp://127.0.0.1:8500", c.Notices.Endpoint, line)
			assert.Equal(t, "10.0.0.7:0", c.Notices.Listen, line)
			continue
		}
		init, alloc := c.Facts.Ports[instance.PortLMCacheInit], c.Facts.Ports[instance.PortLMCacheAlloc]
		assert.Equal(t, []int{7300, 7301}, init, "%s: %v", line, c.Facts.Ports)
		assert.Equal(t, []int{7400, 7401}, alloc, "%s: %v", line, c.Facts.Ports)
	}
}

func TestLMCacheRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ args, want string }{
		{"--role=decode --connector=lmcache", "--lmcache-init-port: is missing"},
		{"--role=decode --connector=lmcache --lmcache-init-port=1,2 --lmcache-alloc-port=3", "--lmcache-alloc-port: 1 ports, but 2"},
		{"--role=decode --connector=lmcache --lmcache-init-port=x --lmcache-alloc-port=3", "--lmcache-init-port: \"x\""},
		{"--role=prefill --connector=lmcache --lmcache-notify=127.0.0.1:8500", "tcp://host:port"},
		{"--role=prefill --connector=lmcache --lmcache-init-port=1", "--lmcache-init-port: is for an engine of the other role"},
		{"--role=prefill --connector=nixl --lmcache-notify=tcp://127.0.0.1:8500", "--lmcache-notify: is for an engine of the other role"},
		{"--role=prefill --connector=lmcache --lmcache-config=/does/not/exist", "--lmcache-config"},
	} {
		args := append([]string{"--host-id=h", "--address=127.0.0.1:8100"}, strings.Fields(tc.args)...)
		_, err := loadArgs(t, nil, args...)
		assert.True(t, err != nil && strings.Contains(err.Error(), tc.want), "%s: %v", tc.args, err)
	}
}
