package settings_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/settings"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// A flag wins over the environment, that over the default; an empty variable says nothing.
func TestOrder(t *testing.T) {
	t.Parallel()
	env := map[string]string{"PD_A": "env", "PD_EMPTY": "", "PD_LIST": "x, y,", "OTHER": "other", "PD_ONE_TWO": "both"}
	fs := pflag.NewFlagSet("prog", pflag.ContinueOnError)
	for _, name := range []string{"a", "empty", "flagged", "named", "one-two"} {
		fs.String(name, "default", "")
	}
	fs.StringSlice("list", []string{"d"}, "")
	fs.StringArray("each", nil, "")
	if err := fs.Parse([]string{"--flagged=", "--each", "p", "--each", "q"}); err != nil {
		t.Fatal(err)
	}
	v := settings.Read(fs, func(name string) (string, bool) { s, ok := env[name]; return s, ok }, map[string][]string{"named": {"OTHER"}, "one-two": {"OTHER"}})
	for name, want := range map[string]struct {
		text  string
		given bool
		from  string
	}{
		"a": {"env", true, "PD_A"}, "empty": {"default", false, ""}, "flagged": {"", true, ""}, "named": {"other", true, "OTHER"}, "one-two": {"both", true, "PD_ONE_TWO"},
	} {
		e, _ := v.FromEnv(name)
		if v.Text(name) != want.text || v.Given(name) != want.given || e.Variable != want.from {
			t.Errorf("%s: %q, given %v, from %q", name, v.Text(name), v.Given(name), e.Variable)
		}
	}
	if got := v.List("list"); !slices.Equal(got, []string{"x", "y"}) {
		t.Errorf("list: %q", got)
	}
	if got := v.List("each"); !slices.Equal(got, []string{"p", "q"}) {
		t.Errorf("each: %q", got)
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"on": true, "TRUE": true, "yes": true, "1": true, "off": false, "false": false, "No": false, "0": false} {
		if got, err := settings.Switch(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]time.Duration{"500ms": time.Second / 2, "30": 30 * time.Second, "1.5": 1500 * time.Millisecond} {
		if got, err := settings.Duration(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "maybe", "NaN", "1e300"} {
		if _, err := settings.Duration(text); !errors.Is(err, settings.ErrValue) {
			t.Errorf("%q is a duration: %v", text, err)
		}
		if _, err := settings.Switch(text); !errors.Is(err, settings.ErrValue) {
			t.Errorf("%q is on or off: %v", text, err)
		}
	}
}
