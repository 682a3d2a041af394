package proxy

import (
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/httpapi/apikeys"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// A file of API keys that contains a key of the other kind is refused at the start and when it is reloaded.
func TestOpenKeys_OtherKind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		cfg := &config.Proxy{}
		cfg.APIKeys, cfg.AdminAPIKey = []string{"client-1", "client-2"}, "secret"
		cfg.APIKeysFile, cfg.AdminAPIKeysFile = filepath.Join(dir, "clients"), filepath.Join(dir, "admins")
		write := func(path, text string) {
			t.Helper()
			testkit.WriteFile(t, path, text)
		}
		good := map[string]string{cfg.APIKeysFile: "c3 team-c\n", cfg.AdminAPIKeysFile: "a2 anna operate\n"}
		for path, text := range good {
			write(path, text)
		}
		log := logrus.New()
		log.SetOutput(t.Output())
		clients, admins, err := openKeys(cfg, log)
		require.NoError(t, err)
		go clients.Watch(t.Context())
		go admins.Watch(t.Context())
		for _, tc := range []struct {
			path, key string
			ring      *apikeys.Ring
		}{{cfg.APIKeysFile, "secret", clients}, {cfg.AdminAPIKeysFile, "client-2", admins}, {cfg.APIKeysFile, "a2", clients}, {cfg.AdminAPIKeysFile, "c3", admins}} {
			write(tc.path, good[tc.path]+tc.key+" new\n")
			if _, _, err := openKeys(cfg, log); err == nil || strings.Contains(err.Error(), tc.key) {
				t.Errorf("%s in %s: start: %v", tc.key, tc.path, err)
			}
			time.Sleep(10 * time.Second)
			if found, ok := tc.ring.Find(tc.key); ok || tc.ring.Problem() == "" || strings.Contains(tc.ring.Problem(), tc.key) {
				t.Errorf("%s in %s: reload: %+v, problem %q", tc.key, tc.path, found, tc.ring.Problem())
			}
			write(tc.path, good[tc.path])
			time.Sleep(10 * time.Second)
			assert.Equal(t, "", tc.ring.Problem(), "repaired")
		}
	})
}
