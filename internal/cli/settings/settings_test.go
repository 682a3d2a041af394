package settings_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// fields has the settings of a program.
type fields struct {
	a, empty, flagged, named, both, file, secret string
	list, each                                   []string
	on, show                                     bool
	config                                       string
}

func (f *fields) table() settings.Table {
	return append(settings.About("all",
		settings.Setting{Name: "a", Kind: settings.Text, Default: "default", Into: &f.a},
		settings.Setting{Name: "empty", Kind: settings.Text, Default: "default", Into: &f.empty},
		settings.Setting{Name: "flagged", Kind: settings.Text, Default: "default", Into: &f.flagged},
		settings.Setting{Name: "named", Kind: settings.Text, Env: []string{"OTHER"}, Into: &f.named},
		settings.Setting{Name: "one-two", Kind: settings.Text, Env: []string{"OTHER"}, Into: &f.both},
		settings.Setting{Name: "file", Kind: settings.Text, Into: &f.file},
		settings.Setting{Name: "secret", Kind: settings.Text, Secret: true, Into: &f.secret},
		settings.Setting{Name: "list", Kind: settings.List, Default: "d", Into: &f.list},
		settings.Setting{Name: "each", Kind: settings.Items, Into: &f.each},
		settings.Setting{Name: "on", Kind: settings.OnOff, Default: "off", Into: &f.on},
	), settings.Reading("PD_THIS_CONFIG", &f.config, &f.show)...)
}

func (f *fields) load(t *testing.T, env map[string]string, own string, args ...string) (*settings.Values, error) {
	t.Helper()
	fs := pflag.NewFlagSet("prog", pflag.ContinueOnError)
	f.table().Register(fs)
	require.NoError(t, fs.Parse(args))
	v, err := f.table().Load(fs, func(name string) (string, bool) { s, ok := env[name]; return s, ok }, own)
	if err != nil {
		return nil, err
	}
	return v, v.Fill()
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "prog.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// Settings take precedence in this order: flag, environment, file, default. An empty variable is ignored.
func TestOrder(t *testing.T) {
	t.Parallel()
	path := write(t, "a: file\nfile: file\non: yes\nlist: [f]\n")
	env := map[string]string{"PD_A": "env", "PD_EMPTY": "", "PD_LIST": "x, y", "OTHER": "other", "PD_ONE_TWO": "both", "PD_THIS_CONFIG": path}
	var f fields
	v, err := f.load(t, env, "", "--flagged=", "--each", "p,q", "--each", "r")
	require.NoError(t, err)
	for _, tc := range []struct{ name, got, want, from string }{
		{"a", f.a, "env", "environment PD_A"}, {"empty", f.empty, "default", ""}, {"flagged", f.flagged, "", "flag --flagged"},
		{"named", f.named, "other", "environment OTHER"}, {"one-two", f.both, "both", "environment PD_ONE_TWO"},
		{"file", f.file, "file", "file " + path},
		{"list", strings.Join(f.list, " "), "x y", "environment PD_LIST"}, {"each", strings.Join(f.each, " "), "p,q r", "flag --each"},
		{"on", fmt.Sprint(f.on), "true", "file " + path}, {"config", f.config, path, "environment PD_THIS_CONFIG"},
	} {
		assert.True(t, tc.got == tc.want && v.Sources[tc.name] == tc.from && v.Given(tc.name) == (tc.from != ""),
			"%s: %q from %q", tc.name, tc.got, v.Sources[tc.name])
	}
	require.True(t, v.FromFlag("each"), "what is from a flag is not known")
	assert.False(t, v.FromFlag("a"), "what is from a flag is not known")
}

// A user's default file need not exist; a named file must. With --config=, no file is read.
func TestUserFile_Optional(t *testing.T) {
	t.Parallel()
	own := write(t, "a: own\n")
	for _, tc := range []struct {
		own  string
		args []string
		want string
	}{
		{own, nil, "own"}, {own + ".none", nil, "default"}, {own, []string{"--config="}, "default"}, {own, []string{"--config", write(t, "file: x\n")}, "default"},
	} {
		var f fields
		_, err := f.load(t, nil, tc.own, tc.args...)
		assert.True(t, err == nil && f.a == tc.want, "%q %q: %q, %v", tc.own, tc.args, f.a, err)
	}
	var f fields
	_, err := f.load(t, nil, own, "--config", own+".none")
	assert.ErrorIs(t, err, os.ErrNotExist, "a file that is not there")
	_, err = f.load(t, nil, write(t, "b: 1\n"))
	assert.ErrorContains(t, err, `unknown key "b"`, "a mistake in the own file")
	for _, tc := range []struct{ xdg, home, want string }{
		{"/x", "/h", "/x/pdmesh/prog.yaml"}, {"x", "/h", "/h/.config/pdmesh/prog.yaml"}, {"", "/h", "/h/.config/pdmesh/prog.yaml"}, {"", "", ""},
	} {
		env := map[string]string{"XDG_CONFIG_HOME": tc.xdg, "HOME": tc.home}
		got := settings.OwnFile("prog", func(name string) (string, bool) { s, ok := env[name]; return s, ok })
		assert.Equal(t, tc.want, got, "%+v: %q", tc, got)
	}
}

// The printed file has the same settings, except secrets.
func TestPrint(t *testing.T) {
	t.Parallel()
	var f, again fields
	v, err := f.load(t, map[string]string{"PD_SECRET": "hidden\n# list: [no]"}, "", "--a", " #: 'x\"\n", "--each", "p,q", "--on", "--list=x,y")
	require.NoError(t, err)
	var out strings.Builder
	require.NoError(t, f.table().Print(&out, func(s settings.Setting) (any, string) { return s.Into, v.Sources[s.Name] }, "a remark\nlist: [no]"))
	if strings.Contains(out.String(), "hidden") || !strings.Contains(out.String(), "# secret: ") || !strings.Contains(out.String(), "# a remark\\nlist") {
		t.Errorf("%s", out.String())
	}
	_, err = again.load(t, nil, "", "--config", write(t, out.String()))
	require.NoError(t, err, out.String())
	f.secret, again.config = "", ""
	assert.True(t, reflect.DeepEqual(f, again), "%+v, read again %+v\n%s", f, again, out.String())
}

func TestValues(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"on": true, "TRUE": true, "yes": true, "1": true, "off": false, "false": false, "No": false, "0": false} {
		got, err := settings.Switch(text)
		assert.True(t, err == nil && got == want, "%q: %v, %v", text, got, err)
	}
	for text, want := range map[string]time.Duration{"500ms": time.Second / 2, "30": 30 * time.Second, "1.5": 1500 * time.Millisecond} {
		got, err := settings.Duration(text)
		assert.True(t, err == nil && got == want, "%q: %v, %v", text, got, err)
	}
	for _, text := range []string{"", "maybe", "NaN", "1e300"} {
		_, err := settings.Duration(text)
		assert.ErrorIs(t, err, settings.ErrValue, "%q is a duration", text)
		_, err = settings.Switch(text)
		assert.ErrorIs(t, err, settings.ErrValue, "%q is on or off", text)
	}
}
