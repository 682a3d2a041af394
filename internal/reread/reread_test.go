package reread_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pdmesh/pdmesh/internal/reread"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

var errBad = errors.New("bad")

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// open reads two files and no third one; what is made of them is their text.
func open(t *testing.T, a, b string, told *[]string) *reread.Files[string] {
	t.Helper()
	f, err := reread.Open(reread.Options[string]{
		Paths: []string{a, "", b}, Most: 8,
		Make: func(held [][]byte, _ *string) (*string, error) {
			text := string(held[0]) + "," + string(held[1]) + "," + string(held[2])
			if strings.Contains(text, "bad") {
				return nil, errBad
			}
			return &text, nil
		},
		Taken:   func(is *string) { *told = append(*told, "taken "+*is) },
		Refused: func(why error) { *told = append(*told, why.Error()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Changed files are taken when two looks have found the same. What cannot be used is told
// of once, until there is something else to tell.
func TestLooks(t *testing.T) {
	t.Parallel()
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	write(t, a, "1")
	write(t, b, "2")
	var told []string
	f := open(t, a, b, &told)
	for _, step := range []struct {
		what, a, b string // the files; "-": gone
		now        string // after each of three looks, by |
		problem    string // after them
		told       string // by |
	}{
		{"nothing new", "1", "2", "1,,2|1,,2|1,,2", "", ""},
		{"changed", "3", "2", "1,,2|3,,2|3,,2", "", "taken 3,,2"},
		{"bad", "bad", "2", "3,,2|3,,2|3,,2", "bad", "bad"},
		{"back", "3", "2", "3,,2|3,,2|3,,2", "", ""},
		{"bad again", "3", "bad", "3,,2|3,,2|3,,2", "bad", "bad"},
		{"too large", "3", "123456789", "3,,2|3,,2|3,,2", "b: too large: more than 8 bytes", "b: too large: more than 8 bytes"},
		{"gone", "-", "4", "3,,2|3,,2|3,,2", "a: no such file or directory", "a: no such file or directory"},
		{"mended", "5", "4", "3,,2|5,,4|5,,4", "", "taken 5,,4"},
		{"empty", "", "4", "5,,4|,,4|,,4", "", "taken ,,4"},
	} {
		told = nil
		for path, text := range map[string]string{a: step.a, b: step.b} {
			if text == "-" {
				_ = os.Remove(path)
			} else {
				write(t, path, text)
			}
		}
		for n, want := range strings.Split(step.now, "|") {
			if f.Look(); *f.Now() != want {
				t.Errorf("%s, look %d: %q, want %q", step.what, n+1, *f.Now(), want)
			}
		}
		if is := f.Status().Problem; !strings.HasSuffix(is, step.problem) || (is == "") != (step.problem == "") {
			t.Errorf("%s: problem %q", step.what, is)
		}
		if got := strings.Join(told, "|"); !strings.HasSuffix(got, step.told) || (got == "") != (step.told == "") || strings.Count(got, "|") != strings.Count(step.told, "|") {
			t.Errorf("%s: told %q", step.what, got)
		}
	}
	if n := f.Status().Reloads; n != 3 {
		t.Errorf("%d reloads", n)
	}
}

// A file that does not answer, as one on a share that has gone, holds up no one else.
func TestSilentFile(t *testing.T) {
	t.Parallel()
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	write(t, a, "1")
	write(t, b, "2")
	var told []string
	f := open(t, a, b, &told)
	if err := errors.Join(os.Remove(b), syscall.Mkfifo(b, 0o600)); err != nil {
		t.Fatal(err)
	}
	looked := make(chan struct{})
	go func() { defer close(looked); f.Look() }()
	pipe, err := os.OpenFile(b, os.O_WRONLY, 0) // waits until it is read
	if err != nil {
		t.Fatal(err)
	}
	if *f.Now() != "1,,2" || f.Status() != (reread.Status{}) {
		t.Errorf("%q, %+v", *f.Now(), f.Status())
	}
	if err := pipe.Close(); err != nil {
		t.Error(err)
	}
	<-looked
}

// What is wrong with the files at the start is an error.
func TestOpen(t *testing.T) {
	t.Parallel()
	nothing := func([][]byte, *string) (*string, error) { return nil, errBad }
	if _, err := reread.Open(reread.Options[string]{Paths: []string{""}, Make: nothing}); !errors.Is(err, errBad) {
		t.Error(err)
	}
	if _, err := reread.Open(reread.Options[string]{Paths: []string{filepath.Join(t.TempDir(), "not")}, Make: nothing}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
