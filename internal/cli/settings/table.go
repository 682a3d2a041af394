package settings

import (
	"strings"

	"github.com/spf13/pflag"
)

// Kind is the form of a value, as --help shows it after the flag.
type Kind string

// The kinds of values.
const (
	Text     Kind = "string"
	Number   Kind = "number" // "int" would make viper convert it, silently
	Bytes    Kind = "size"
	Time     Kind = "duration"
	OnOff    Kind = "on|off"
	List     Kind = "list"
	Items    Kind = "item"      // a list whose items may hold commas where the flag is repeated
	ListJSON Kind = "json list" // as vLLM's options have it, ["a","b"], or with commas
)

// Setting describes one setting of a program under all its names.
type Setting struct {
	Name    string
	Short   string
	Kind    Kind
	Default string
	Usage   string
	// Group is the heading of the setting in --help and in the reference; About sets it.
	Group string
	// Env has further environment variables, after PD_<NAME>.
	Env []string
	// Secret values are masked.
	Secret bool
	// FlagOnly settings control how settings are read; they have no variables except those of
	// Env.
	FlagOnly bool
	// Rare settings are listed by --help-all, not by --help.
	Rare bool
	// Hidden settings are for tests: neither --help-all nor the reference lists them.
	Hidden bool
	// Spread lists accept several arguments after the flag; see Normalize.
	Spread bool
	// Takes describes the values that Table.Check accepts: words, such as "own or std", or bounds of a
	// number, a size or a time, such as "1 to 100" or "100ms to 1h, or 0 for none"; "" for any.
	Takes string
	// Into points to the variable that Fill sets; nil for a setting that is read by name.
	Into any
}

// Table has the settings of a program in the order of --help.
type Table []Setting

// About returns a table of settings with one group.
func About(group string, list ...Setting) Table {
	for i := range list {
		list[i].Group = group
	}
	return list
}

// The names of the two settings that every table has.
const (
	nameFile  = "config"
	namePrint = "print-config"
)

// Reading returns the settings that control how a program reads its settings. variable names
// the file, too; it differs between programs, because they share an environment.
func Reading(variable string, file *string, show *bool) Table {
	return About("Configuration",
		Setting{Name: nameFile, Kind: Text, FlagOnly: true, Env: []string{variable}, Usage: "YAML file with settings; the keys are the names of these flags (env " + variable + ")", Into: file},
		Setting{Name: namePrint, Kind: OnOff, Default: "off", FlagOnly: true, Usage: "print all values and their sources, with secrets masked, and exit", Into: show},
	)
}

// Find returns the setting with a name.
func (t Table) Find(name string) (Setting, bool) {
	for _, s := range t {
		if s.Name == name {
			return s, true
		}
	}
	return Setting{}, false
}

// Register adds a flag for every setting. Load reads them after fs has been parsed.
func (t Table) Register(fs *pflag.FlagSet) {
	fs.SortFlags = false // the order of the table
	for _, s := range t {
		f := fs.VarPF(&typed{kind: s.Kind, items: []string{s.Default}}, s.Name, s.Short, s.Usage)
		f.Hidden = s.Hidden
		f.Annotations = map[string][]string{annotationGroup: {s.Group}}
		if s.Rare {
			f.Annotations[annotationRare] = nil
		}
		if s.Kind == OnOff {
			f.NoOptDefVal = "on" // --trace-headers alone
		}
	}
}

// Variables returns the names of a setting in the environment, by precedence.
func (s Setting) Variables() []string {
	if s.FlagOnly {
		return s.Env
	}
	return append([]string{prefix + variableName(s.Name)}, s.Env...)
}

// several reports whether a setting is a list.
func (s Setting) several() bool { return s.Kind == List || s.Kind == Items }

// typed is a flag that keeps its text, so that the values of all sources are parsed in one
// place. A list collects the items of repeated flags.
type typed struct {
	kind  Kind
	items []string
	given bool
}

// String implements pflag.Value.
func (v *typed) String() string { return strings.Join(v.items, ",") }

// Set implements pflag.Value.
func (v *typed) Set(s string) error {
	items := []string{s}
	if v.kind == List {
		items = strings.Split(s, ",")
	}
	if v.given && (v.kind == List || v.kind == Items) {
		items = append(v.items, items...)
	}
	v.items, v.given = items, true
	return nil
}

// Type implements pflag.Value.
func (v *typed) Type() string { return string(v.kind) }
