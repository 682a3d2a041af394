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

// Sources has the source of each setting that is not a default.
type Sources map[string]string

const fromFlag = "flag --"

// Complain returns an error about a setting, with the source of its value unless that is the
// command line. If the value is from a flag of another name, as the reference proxies have,
// the error has that name.
func (s Sources) Complain(name string, err error) error {
	where := ""
	if flag, ok := strings.CutPrefix(s[name], fromFlag); ok {
		name = flag
	} else if s[name] != "" {
		where = " (from " + s[name] + ")"
	}
	return fmt.Errorf("--%s%s: %w", name, where, err)
}

// Values has the values of a table from flags, environment, file and defaults.
type Values struct {
	Sources Sources

	table Table
	raw   map[string]any // string, or []string
}

// Load reads the settings of a table. flags must be parsed; a setting without a flag there
// cannot be set by one. lookup is os.LookupEnv or a replacement. An empty variable counts as
// not set. The file is that of --config, or else own, which need not exist; "" for none.
func (t Table) Load(flags *pflag.FlagSet, lookup Lookup, own string) (*Values, error) {
	v := &Values{Sources: Sources{}, table: t, raw: map[string]any{}}
	layers := viper.New()
	variables := t.environment(lookup)
	file, path, err := t.file(flags, variables, own)
	if err != nil {
		return nil, err
	}
	for name := range file {
		v.Sources[name] = "file " + path
	}
	if err := layers.MergeConfigMap(file); err != nil {
		return nil, fmt.Errorf("config file %s: %w", path, err)
	}
	// The environment is merged over the file, because viper's own lookup reads only the
	// environment of the process.
	over := make(map[string]any, len(variables))
	for name, e := range variables {
		over[name] = e.value
		v.Sources[name] = "environment " + e.variable
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
			continue // a flag of the command that has the same name
		}
		v.raw[s.Name] = given.String()
		if s.several() {
			v.raw[s.Name] = slices.Clone(given.items)
		}
		v.Sources[s.Name] = fromFlag + s.Name
	}
	return v, nil
}

// environment returns the settings that environment variables set.
func (t Table) environment(lookup Lookup) map[string]env {
	out := make(map[string]env)
	for _, s := range t {
		for _, name := range s.Variables() {
			if value, ok := lookup(name); ok && value != "" {
				out[s.Name] = env{name, value}
				break
			}
		}
	}
	return out
}

// file reads the file of settings, which only a flag or the environment can name.
func (t Table) file(flags *pflag.FlagSet, variables map[string]env, own string) (values map[string]any, path string, err error) {
	if f := flags.Lookup(nameFile); f != nil && f.Changed {
		path, own = f.Value.String(), "" // --config= means no file at all
	} else {
		path = variables[nameFile].value
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

// OwnFile returns the path of a user's settings of a program, pdmesh/<program>.yaml in
// $XDG_CONFIG_HOME or ~/.config; "" for a user without a home.
func OwnFile(program string, lookup Lookup) string {
	dir, _ := lookup("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) { // a relative one is ignored, as the XDG specification requires
		home, _ := lookup("HOME")
		if !filepath.IsAbs(home) {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "pdmesh", program+".yaml")
}

// Fill parses the values of the named settings into Setting.Into, of all settings without
// names. The error has a line for each invalid value.
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
func (v *Values) FromFlag(name string) bool { return v.Sources[name] == fromFlag+name }

// Given reports whether a setting is not a default.
func (v *Values) Given(name string) bool { return v.Sources[name] != "" }

// Text returns the text of a setting, or its default.
func (v *Values) Text(name string) string {
	switch raw := v.raw[name].(type) {
	case string:
		return raw
	case []string:
		return strings.Join(raw, ",")
	}
	return ""
}

// Raw returns a setting as it was written, a string or the items of a list; nil if it is not
// set and has no default.
func (v *Values) Raw(name string) any {
	if !v.Given(name) && v.Text(name) == "" {
		return nil
	}
	return v.raw[name]
}

// Set sets the value and source of a setting that no source has.
func (v *Values) Set(name string, value any, from string) {
	v.raw[name], v.Sources[name] = value, from
}
