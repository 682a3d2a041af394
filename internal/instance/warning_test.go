package instance_test

import (
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/instance"
)

func TestWarning(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, transfer, record, proxy string
		warned                        bool
	}{
		{"NIXL asked as plain", "nixl", "", "plain", true},
		{"the record says plain", "nixl", "plain", "nixl", true},
		{"NIXL by the proxy's default", "nixl", "", "nixl", false},
		{"NIXL by the record", "nixl", "NixlConnector", "plain", false},
		{"the default is not known", "nixl", "", "", false},
		{"nothing shows", "", "", "plain", false},
	} {
		in := instance.Instance{Record: instance.Record{Transfer: tc.transfer, Connector: tc.record}}
		if got := in.Warning(tc.proxy); (got != "") != tc.warned || tc.warned && !strings.Contains(got, "--connector nixl") {
			t.Errorf("%s: %q", tc.name, got)
		}
	}
}
