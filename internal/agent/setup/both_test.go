package setup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// The role both is never derived: most engines with kv_both are meant for one role.
func TestRole_NeverGuessedBoth(t *testing.T) {
	t.Parallel()
	serve := []string{"--etcd-endpoints=127.0.0.1:1", "--", "vllm", "serve", "M", "--port", "8100", "--kv-transfer-config"}
	config := func(role string) []string {
		return append(slices.Clip(serve), `{"kv_connector":"NixlConnector","kv_role":"`+role+`"}`)
	}
	if _, err := loadArgs(t, nil, config("kv_both")...); err == nil || !errors.Is(err, errNoRole) || !strings.Contains(err.Error(), "--role both") {
		t.Errorf("kv_both alone: %v", err)
	}
	for _, tc := range []struct {
		env    map[string]string
		args   []string
		kvRole string
		note   bool
	}{
		{nil, append([]string{"--role=both"}, config("kv_both")...), "kv_both", false},
		{map[string]string{"PD_ROLE": "both"}, config("kv_both"), "kv_both", false},
		{map[string]string{"PD_ROLE": "both"}, []string{"--address=127.0.0.1:1", "--etcd-endpoints=127.0.0.1:2"}, "kv_both", false},
		{nil, append([]string{"--role=both"}, config("kv_producer")...), "kv_producer", true},
	} {
		c, err := loadArgs(t, tc.env, tc.args...)
		if err != nil {
			t.Errorf("%v: %v", tc.args, err)
			continue
		}
		if c.Key.Role != instance.Both || c.Facts.KVRole != tc.kvRole || strings.Contains(fmt.Sprint(c.Notes), "the role is both, but") != tc.note {
			t.Errorf("%v: role %s, kv_role %s, notes %v", tc.args, c.Key.Role, c.Facts.KVRole, c.Notes)
		}
	}
}
