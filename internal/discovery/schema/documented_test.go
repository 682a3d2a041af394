package schema_test

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

const keysPage = "../../../docs/reference/keys.md"

// rows returns the names in the first column of the table below a heading of the page.
func rows(t *testing.T, head string) (names []string) {
	t.Helper()
	raw := testkit.ReadFile(t, keysPage)
	_, table, ok := strings.Cut(string(raw), head)
	require.True(t, ok, "%s has no table %q", keysPage, head)
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, " | "); len(cells) > 1 {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[0], -1) {
				names = append(names, m[1])
			}
		}
	}
	return names
}

// Every key of Layout is on the page, and no other key.
func TestKeys_Documented(t *testing.T) {
	t.Parallel()
	layout := members.Layout(t)
	var keys []string
	v := reflect.ValueOf(layout)
	for i := range v.NumMethod() {
		name, method := v.Type().Method(i).Name, v.Method(i)
		if slices.Contains([]string{"Root", "Overrides", "WatchStart", "WatchEnd", "ListedPrefixes", "Parse", "Owns"}, name) {
			continue // prefixes and predicates, not keys
		}
		var in []reflect.Value
		for takes := range method.Type().Ins() {
			if takes.Kind() == reflect.Struct {
				in = append(in, reflect.ValueOf(instance.Key{Role: "<role>", Address: "<host:port>"}))
				continue
			}
			id := "<id>"
			if name == "Audit" {
				id = "<ulid>"
			}
			in = append(in, reflect.ValueOf(id))
		}
		key := strings.TrimPrefix(method.Call(in)[0].String(), layout.Root())
		if name == "Instance" {
			for _, role := range instance.Roles() {
				keys = append(keys, strings.Replace(key, "<role>", string(role), 1))
			}
			continue
		}
		if name == "Document" {
			for _, folder := range []instance.Role{schema.Limits, schema.Models} {
				keys = append(keys, strings.NewReplacer("<role>", string(folder), "<host:port>", "<name>").Replace(key))
			}
			continue
		}
		keys = append(keys, key)
	}
	same(t, "key", keys, rows(t, "| key below the root |"))
}

// Every field of a record is on the page, and no other field.
func TestRecordFields_Documented(t *testing.T) {
	t.Parallel()
	var fields []string
	for field := range reflect.TypeFor[instance.Record]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		fields = append(fields, name)
	}
	same(t, "field of a record", fields, rows(t, "| field |"))
}

func same(t *testing.T, what string, code, page []string) {
	t.Helper()
	for _, name := range code {
		assert.True(t, slices.Contains(page, name), "docs/reference/keys.md has no row for the %s %s", what, name)
	}
	for _, name := range page {
		assert.True(t, slices.Contains(code, name),
			"docs/reference/keys.md has a row for %s, which is no %s", name, what)
	}
}
