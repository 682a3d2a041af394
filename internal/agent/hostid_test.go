package agent

import (
	"errors"
	"os"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHostID(t *testing.T) {
	t.Parallel()
	file := func(name, text string) fstest.MapFS {
		return fstest.MapFS{name: &fstest.MapFile{Data: []byte(text)}}
	}
	ns := func(s string) func(string) (string, error) {
		return func(string) (string, error) { return s, nil }
	}
	noNS := func(string) (string, error) { return "", errors.ErrUnsupported }
	id := func(root fstest.MapFS, readlink func(string) (string, error)) string {
		t.Helper()
		got, err := HostID(root, readlink)
		require.NoError(t, err)
		require.Len(t, got, 16)
		return got
	}
	base := id(file("etc/machine-id", "abc\n"), ns("net:[1]"))
	for name, got := range map[string]string{
		"other namespace": id(file("etc/machine-id", "abc\n"), ns("net:[2]")),
		"other machine":   id(file("etc/machine-id", "def\n"), ns("net:[1]")),
		"no namespace":    id(file("etc/machine-id", "abc\n"), noNS),
		"no machine id":   id(file("proc/sys/kernel/random/boot_id", "boot\n"), ns("net:[1]")),
		"nothing":         id(fstest.MapFS{}, ns("net:[1]")),
		"uninitialized":   id(file("etc/machine-id", "uninitialized\n"), ns("net:[1]")),
	} {
		assert.NotEqual(t, base, got, "%s: same id", name)
	}
	assert.Equal(t, base, id(file("var/lib/dbus/machine-id", "abc"), ns("net:[1]")),
		"the same machine id in its other place: other id")
	assert.Equal(t, id(file("etc/machine-id", " "), noNS), id(fstest.MapFS{}, noNS), "an empty machine id is none")
	_, err := HostID(os.DirFS("/"), os.Readlink)
	assert.NoError(t, err, "here")
}
