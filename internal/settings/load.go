package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// Sources says for each setting that is no default where its value is from.
type Sources map[string]string

const fromFlag = "flag --"

// Complain words an error about one setting and says where its value is from when that is
// not the command line. A value that came by a flag of another name, as those of the
// reference proxies have, is complained of by that name.
func (s Sources) Complain(name string, err error) error {
	where := ""
	if flag, ok := strings.CutPrefix(s[name], fromFlag); ok {
		name = flag
	} else if s[name] != "" {
		where = " (from " + s[name] + ")"
	}
	return fmt.Errorf("--%s%s: %w", name, where, err)
}

// Values are what flags, environment, file and defaults say of the settings of a table.
type Values struct {
	Sources Sources

	table Table
	raw   map[string]any // string, or []string
	typed map[string]bool
}

// Load reads the settings of a table. Its flags must be in flags, as far as the command has
// them, and be parsed; lookup is os.LookupEnv or replaces it. An environment variable that
// is set but empty counts as not set. The file is that of --config, or else one of the user's
// own that need not exist; "" for none.
func (t Table) Load(flags *pflag.FlagSet, lookup Lookup, own string) (*Values, error) {
	v := &Values{Sources: Sources{}, table: t, raw: map[string]any{}, typed: map[string]bool{}}
	layers := viper.New()
	env := t.environment(lookup)
	file, path, err := t.file(flags, env, own)
	if err != nil {
		return nil, err
	}
	for name := range file {
		v.Sources[name] = "file " + path
	}
	if err := layers.MergeConfigMap(file); err != nil {
		return nil, fmt.Errorf("config file %s: %w", path, err)
	}
	// The environment goes in as a second layer over the file rather than through viper's
	// own look-up, which reads the process' environment only.
	over := make(map[string]any, len(env))
	for name, e := range env {
		over[name] = e.Value
		v.Sources[name] = "environment " + e.Variable
	}
	if err := layers.MergeConfigMap(over); err != nil {
		return nil, fmt.Errorf("environment: %w", err)
	}
	for _, s := range t {
		layers.SetDefault(s.Name, s.Default)
		v.raw[s.Name] = layers.Get(s.Name)
		flag := flags.Lookup(s.Name)
		if flag == nil || !flag.Changed {
			continue
		}
		given, ok := flag.Value.(*typed)
		if !ok {
			continue // a flag of the command's own, of the same name
		}
		v.raw[s.Name] = given.String()
		if s.several() {
			v.raw[s.Name] = slices.Clone(given.items)
		}
		v.typed[s.Name] = true
		v.Sources[s.Name] = fromFlag + s.Name
	}
	return v, nil
}

// environment collects the settings that environment variables give.
func (t Table) environment(lookup Lookup) map[string]Env {
	out := make(map[string]Env)
	for _, s := range t {
		if e, ok := lookup.First(s.variables()...); ok {
			out[s.Name] = e
		}
	}
	return out
}

// file reads the file of settings. Where it is can be said by flag and environment only.
func (t Table) file(flags *pflag.FlagSet, env map[string]Env, own string) (values map[string]any, path string, err error) {
	if f := flags.Lookup(nameFile); f != nil && f.Changed {
		path, own = f.Value.String(), "" // --config= means no file at all
	} else {
		path = env[nameFile].Value
	}
	switch {
	case path != "":
		values, err = t.readFile(path)
	case own != "":
		path = own
		if values, err = t.readFile(own); errors.Is(err, fs.ErrNotExist) {
			return nil, "", nil
		}
	}
	return values, path, err
}

// OwnFile is where a user's settings of a program are, pdmesh/<program>.yaml in
// $XDG_CONFIG_HOME or ~/.config; "" for a user without a home.
func OwnFile(program string, lookup Lookup) string {
	dir, _ := lookup("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) { // a relative one is passed over, as the XDG specification demands
		home, _ := lookup("HOME")
		if !filepath.IsAbs(home) {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "pdmesh", program+".yaml")
}

// Fill writes the values to where the settings of these names say, all without names. The
// error lists everything that is wrong, a line each.
func (v *Values) Fill(names ...string) error {
	var errs []error
	for _, s := range v.table {
		if s.Into == nil || len(names) > 0 && !slices.Contains(names, s.Name) {
			continue
		}
		if v.raw[s.Name] == "" && s.several() {
			continue // the default of a list may be no list
		}
		if err := Assign(s.Into, v.raw[s.Name]); err != nil {
			errs = append(errs, v.Sources.Complain(s.Name, err))
		}
	}
	return errors.Join(errs...)
}

// FromFlag reports whether a setting is from the command line.
func (v *Values) FromFlag(name string) bool { return v.typed[name] }

// Given reports whether a setting is no default.
func (v *Values) Given(name string) bool { return v.Sources[name] != "" }

// Text is a setting as it was written, or its default.
func (v *Values) Text(name string) string {
	switch raw := v.raw[name].(type) {
	case string:
		return raw
	case []string:
		return strings.Join(raw, ",")
	}
	return ""
}

// Raw is a setting as it was written, a string or the items of a list; nil when nothing
// says anything.
func (v *Values) Raw(name string) any {
	if !v.Given(name) && v.Text(name) == "" {
		return nil
	}
	return v.raw[name]
}

// Set says what a setting is that nobody has given, and how it was found.
func (v *Values) Set(name string, value any, from string) {
	v.raw[name], v.Sources[name] = value, from
}
