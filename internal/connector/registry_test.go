package connector_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

const root = "../.."

// Every name that a release of vLLM or vllm-ascend registers is supported, or refused for a reason. The files
// of testdata/registered were read from the packages.
func TestRegisteredNames(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/registered/*.txt")
	require.True(t, err == nil && len(files) >= 3, "%q, %v", files, err)
	for _, f := range files {
		names := testkit.ReadFile(t, f)
		for name := range strings.FieldsSeq(string(names)) {
			_, ok := connector.OfClass(name)
			assert.True(t, ok, "%s: %s is not known", f, name)
		}
	}
}

// Every class has an existing dialect or a reason, and a page.
func TestClasses(t *testing.T) {
	t.Parallel()
	for _, c := range connector.Classes() {
		got, ok := connector.OfClass(strings.ToUpper(c.Name))
		assert.True(t, ok && got == c, "%s: %+v", c.Name, got)
		_, err := os.Stat(filepath.Join(root, c.Page))
		assert.NoError(t, err, c.Name)
		short, err := connector.Canonical(c.Name)
		switch {
		case c.Itself != "":
			require.NoError(t, err, c)
			assert.Equal(t, connector.MoRIIO, short, c)
		case c.Refused != "":
			if !errors.Is(err, connector.ErrUnknown) || !strings.Contains(err.Error(), c.Refused) || !strings.Contains(err.Error(), c.Page) || c.Dialect != "" {
				t.Errorf("%+v: %v", c, err)
			}
		case err != nil || short != c.Dialect || !slices.Contains(connector.Names(), short):
			t.Errorf("%+v is %q, %v", c, short, err)
		}
	}
	for name, want := range map[string]string{"NixlPullConnector": "nixl", "mooncakeconnector": "mooncake", "LMCacheConnectorV1": "plain", "MoRIIOConnector": "moriio", "": ""} {
		got, err := connector.Canonical(name)
		assert.True(t, got == want && err == nil, "Canonical(%q) = %q, %v", name, got, err)
	}
	got, ok := connector.OfClass("nixl")
	assert.False(t, ok, "a dialect is the class %+v", got)
}

// The table of docs/connectors matches the code.
func TestDocsTable_MatchesCode(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("| `kv_connector` | here | |\n|---|---|---|\n")
	for _, c := range connector.Classes() {
		here, more := "`"+c.Dialect+"`", ""
		switch {
		case c.Itself != "":
			here, more = "`moriio`", c.Itself
		case c.Refused != "":
			here, more = "refused", c.Refused
		case c.Local:
			more = "moves blocks within one machine"
		}
		page := filepath.Base(c.Page)
		fmt.Fprintf(&b, "| `%s` | [%s](%s) | %s |\n", c.Name, here, page, more)
	}
	doc := testkit.ReadFile(t, filepath.Join(root, "docs/connectors/README.md"))
	assert.Contains(t, string(doc), b.String())
	for _, name := range connector.Names() {
		if strings.HasPrefix(name, connector.MoRIIO) {
			name = connector.MoRIIO // two modes, one page
		}
		if _, err := os.Stat(filepath.Join(root, "docs/connectors", name+".md")); err != nil {
			t.Error(err)
		}
		assert.Contains(t, string(doc), "]("+name+".md)",
			"docs/connectors/README.md does not lead to %s.md", name)
	}
}
