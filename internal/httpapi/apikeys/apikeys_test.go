package apikeys_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/httpapi/apikeys"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func showing(key string) *http.Request {
	return &http.Request{Header: http.Header{"Authorization": {"Bearer " + key}}}
}

// A new valid file becomes active, an invalid one changes nothing, and keys of --api-key
// have no rights.
func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys")
	write(t, path, "# keys of clients\n\nk1 team-a priority,trace\n\tk2 team-b\r\n")
	r, err := apikeys.Open([]string{"k0"}, path, nil, nil)
	require.NoError(t, err)
	expect := func(when string, want map[string]apikeys.Key) {
		t.Helper()
		for _, key := range []string{"k0", "k1", "k2", "k3", "", "K1"} {
			name, known := want[key]
			found, ok := r.Find(key)
			assert.True(t, ok == known && found == name && r.Of(showing(key)) == name,
				"%s: %q is %+v, %v", when, key, found, ok)
		}
	}
	first := map[string]apikeys.Key{
		"k0": {}, "k1": {Name: "team-a", Rights: apikeys.Priority | apikeys.Trace}, "k2": {Name: "team-b"},
	}
	expect("at first", first)
	for _, bad := range []string{"k1 a\nk2", "k1 a fly", "k1 a priority,", "k1 a trace more", "k1 a class=", "k1 a class=urgent", "k1 a max-class=top", "k1 a class=interactive max-class=default", "k1 a max-class=batch", "k1 a class=batch trace", "k1 a\nk1 b", "k1 a\nk2 a", "k\x01 a", "k1 a/b", "k1 " + strings.Repeat("n", 65)} {
		write(t, path, bad)
		r.Reload()
		if r.Reload(); r.Problem() == "" || strings.Contains(r.Problem(), "k1") || !strings.Contains(r.Problem(), path) || !strings.Contains(r.Problem(), "line ") {
			t.Errorf("%q: %q", bad, r.Problem())
		}
		expect(bad, first)
	}
	write(t, path, "k1 a class=interactive\nk2 b trace class=batch\nk3 c class=default max-class=interactive\nK1 d class=batch max-class=batch")
	r.Reload()
	r.Reload()
	expect("classes", map[string]apikeys.Key{
		"k0": {}, "k1": {Name: "a", Class: "interactive", MaxClass: "interactive"}, "k2": {Name: "b", Rights: apikeys.Trace, Class: "batch"},
		"k3": {Name: "c", MaxClass: "interactive"}, "K1": {Name: "d", Class: "batch", MaxClass: "batch"},
	})
	write(t, path, "k3 team-c rank\nk1 team-a\n")
	r.Reload()
	r.Reload() // the second call reads a changed file
	expect("changed", map[string]apikeys.Key{"k0": {}, "k1": {Name: "team-a"}, "k3": {Name: "team-c", Rights: apikeys.Rank}})
	assert.Equal(t, "", r.Problem())
	assert.Equal(t, 3, r.Len())
	write(t, path, "")
	r.Reload()
	r.Reload()
	expect("empty", map[string]apikeys.Key{"k0": {}})
	_, err = apikeys.Open(nil, path+".not", nil, nil)
	assert.Error(t, err, "no file, no error")
}

// A partially written file does not remove keys: the previous keys stay active.
func TestKeyFile_PartiallyWritten(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys")
	const was = "k1 team-a priority\nk2 team-b\n"
	write(t, path, was)
	r, err := apikeys.Open(nil, path, nil, nil)
	require.NoError(t, err)
	const is = "k1 team-a\nk2 team-b\nk3 team-c trace\n"
	for n := range is {
		write(t, path, is[:n])
		r.Reload()
		for key, want := range map[string]apikeys.Key{"k1": {Name: "team-a", Rights: apikeys.Priority}, "k2": {Name: "team-b"}} {
			if found, ok := r.Find(key); !ok || found != want || r.Problem() != "" {
				t.Fatalf("after %q: %q is %+v, %v, %q", is[:n], key, found, ok, r.Problem())
			}
		}
	}
	write(t, path, is)
	r.Reload()
	r.Reload()
	found, ok := r.Find("k3")
	assert.True(t, ok && found.Rights == apikeys.Trace, "written: %+v, %v", found, ok)
}

// Without keys, clients need none; with an empty file, every client is refused.
func TestNoKeys(t *testing.T) {
	t.Parallel()
	if r, err := apikeys.Open(nil, "", nil, nil); r != nil || err != nil {
		t.Errorf("%v %v", r, err)
	}
	path := filepath.Join(t.TempDir(), "keys")
	write(t, path, "# none yet\n")
	r, err := apikeys.Open(nil, path, nil, nil)
	require.True(t, err == nil && r != nil, "%v %v", r, err)
	_, ok := r.Find("any")
	assert.False(t, ok, "let in")
}
