package reload_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/transport/certs/reload"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

var errBad = errors.New("bad")

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// open loads two files, and an empty path between them; their value is their text.
func open(t *testing.T, a, b string, calls *[]string) *reload.Files[string] {
	t.Helper()
	f, err := reload.Open(reload.Options[string]{
		Paths: []string{a, "", b}, MaxBytes: 8,
		Parse: func(contents [][]byte, _ *string) (*string, error) {
			text := string(contents[0]) + "," + string(contents[1]) + "," + string(contents[2])
			if strings.Contains(text, "bad") {
				return nil, errBad
			}
			return &text, nil
		},
		Loaded:   func(value *string) { *calls = append(*calls, "loaded "+*value) },
		Rejected: func(why error) { *calls = append(*calls, why.Error()) },
	})
	require.NoError(t, err)
	return f
}

// Changed files are loaded once two checks have found the same
// contents. The reason why they are unusable is reported once.
func TestCheck(t *testing.T) {
	t.Parallel()
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	write(t, a, "1")
	write(t, b, "2")
	var calls []string
	f := open(t, a, b, &calls)
	for _, step := range []struct {
		what, a, b string // contents of the files; "-": deleted
		current    string // values after each of three checks, separated by |
		problem    string // after the checks
		calls      string // of Loaded and Rejected, separated by |
	}{
		{"nothing new", "1", "2", "1,,2|1,,2|1,,2", "", ""},
		{"changed", "3", "2", "1,,2|3,,2|3,,2", "", "loaded 3,,2"},
		{"bad", "bad", "2", "3,,2|3,,2|3,,2", "bad", "bad"},
		{"back", "3", "2", "3,,2|3,,2|3,,2", "", ""},
		{"bad again", "3", "bad", "3,,2|3,,2|3,,2", "bad", "bad"},
		{"too large", "3", "123456789", "3,,2|3,,2|3,,2", "b: too large: more than 8 bytes", "b: too large: more than 8 bytes"},
		{"deleted", "-", "4", "3,,2|3,,2|3,,2", "a: no such file or directory", "a: no such file or directory"},
		{"repaired", "5", "4", "3,,2|5,,4|5,,4", "", "loaded 5,,4"},
		{"empty", "", "4", "5,,4|,,4|,,4", "", "loaded ,,4"},
		{"byte order mark", "\ufeff6", "4", ",,4|6,,4|6,,4", "", "loaded 6,,4"},
	} {
		calls = nil
		for path, text := range map[string]string{a: step.a, b: step.b} {
			if text == "-" {
				_ = os.Remove(path)
			} else {
				write(t, path, text)
			}
		}
		for n, want := range strings.Split(step.current, "|") {
			f.Check()
			assert.Equal(t, want, *f.Current(), "%s, check %d", step.what, n+1)
		}
		if is := f.Status().Problem; !strings.HasSuffix(is, step.problem) || (is == "") != (step.problem == "") {
			t.Errorf("%s: problem %q", step.what, is)
		}
		if got := strings.Join(calls, "|"); !strings.HasSuffix(got, step.calls) || (got == "") != (step.calls == "") || strings.Count(got, "|") != strings.Count(step.calls, "|") {
			t.Errorf("%s: calls %q", step.what, got)
		}
	}
	assert.EqualValues(t, 4, f.Status().Reloads)
}

// While a check blocks, for example on a network share that is down, the active value remains available.
func TestCheck_Blocks(t *testing.T) {
	t.Parallel()
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	write(t, a, "1")
	write(t, b, "2")
	var calls []string
	f := open(t, a, b, &calls)
	require.NoError(t, errors.Join(os.Remove(b), syscall.Mkfifo(b, 0o600)))
	checked := make(chan struct{})
	go func() { defer close(checked); f.Check() }()
	pipe, err := os.OpenFile(b, os.O_WRONLY, 0) // blocks until the file is read
	require.NoError(t, err)
	assert.Equal(t, "1,,2", *f.Current())
	assert.Equal(t, reload.Status{}, f.Status())
	assert.NoError(t, pipe.Close())
	<-checked
}

// Open fails if the files cannot be used.
func TestOpen(t *testing.T) {
	t.Parallel()
	invalid := func([][]byte, *string) (*string, error) { return nil, errBad }
	_, err := reload.Open(reload.Options[string]{Paths: []string{""}, Parse: invalid})
	assert.ErrorIs(t, err, errBad)
	_, err = reload.Open(reload.Options[string]{Paths: []string{filepath.Join(t.TempDir(), "not")}, Parse: invalid})
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// A reader of new contents finds them counted.
func TestStatus_CountsCurrentValue(t *testing.T) {
	t.Parallel()
	a := filepath.Join(t.TempDir(), "a")
	write(t, a, "0")
	var calls []string
	f := open(t, a, a, &calls)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := int64(0); n < 200; {
			n, _ = strconv.ParseInt(strings.Split(*f.Current(), ",")[0], 10, 64)
			if got := f.Status().Reloads; got < n {
				t.Errorf("%d reloads with the contents of %d", got, n)
				return
			}
		}
	}()
	for n := range 201 {
		write(t, a, strconv.Itoa(n))
		f.Check()
		f.Check()
	}
	<-done
}
