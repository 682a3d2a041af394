// Package settings is the one way to say a setting to any program. Each has one name: the
// flag --etcd-prefix is PD_ETCD_PREFIX in the environment, and etcd-prefix in the file of
// a program that has one. A flag wins over the environment, and a variable that is set but
// empty counts as not set.
package settings

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// ErrValue is wrapped by what is said of a value that cannot be read.
var ErrValue = errors.New("bad value")

// Lookup finds environment variables, as os.LookupEnv does.
type Lookup func(name string) (string, bool)

// Variable is a setting's name in the environment.
func Variable(name string) string {
	return "PD_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// Env is what the environment says of a setting.
type Env struct{ Variable, Value string }

// First is the first of some variables that says anything.
func (l Lookup) First(variables ...string) (Env, bool) {
	for _, name := range variables {
		if value, ok := l(name); ok && value != "" {
			return Env{name, value}, true
		}
	}
	return Env{}, false
}

// Values are the settings of a program whose flags are parsed.
type Values struct {
	fs  *pflag.FlagSet
	env map[string]Env
}

// Read looks for every flag in the environment, under its own name and then under others.
func Read(fs *pflag.FlagSet, lookup Lookup, others map[string][]string) Values {
	v := Values{fs: fs, env: make(map[string]Env)}
	fs.VisitAll(func(f *pflag.Flag) {
		if e, ok := lookup.First(append([]string{Variable(f.Name)}, others[f.Name]...)...); ok {
			v.env[f.Name] = e
		}
	})
	return v
}

// FromFlag tells that a setting is from the command line.
func (v Values) FromFlag(name string) bool { return v.fs.Changed(name) }

// FromEnv is the variable that a setting is from.
func (v Values) FromEnv(name string) (Env, bool) {
	e, ok := v.env[name]
	return e, ok && !v.FromFlag(name)
}

// Given tells that a setting is no default.
func (v Values) Given(name string) bool {
	_, ok := v.env[name]
	return ok || v.FromFlag(name)
}

// Text is a setting as it was written, or its default.
func (v Values) Text(name string) string {
	if e, ok := v.FromEnv(name); ok {
		return e.Value
	}
	if f := v.fs.Lookup(name); f != nil {
		return f.Value.String()
	}
	return ""
}

// List is a setting of which there may be several: the flag repeated, or commas.
func (v Values) List(name string) []string {
	var parts []string
	f := v.fs.Lookup(name)
	if e, ok := v.FromEnv(name); ok || f == nil {
		parts = strings.Split(e.Value, ",")
	} else if several, ok := f.Value.(pflag.SliceValue); ok {
		parts = several.GetSlice()
	} else {
		parts = strings.Split(f.Value.String(), ",")
	}
	var out []string
	for _, p := range parts {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, p)
		}
	}
	return out
}

// Switch reads a value that is on or off.
func Switch(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "on", "true", "yes", "1":
		return true, nil
	case "off", "false", "no", "0":
		return false, nil
	}
	return false, fmt.Errorf("%w %q: use on or off", ErrValue, s)
}

// Duration takes Go's notation and, as the flags of other proxies do, a bare number of
// seconds.
func Duration(s string) (time.Duration, error) {
	if d, err := time.ParseDuration(s); err == nil {
		return d, nil
	}
	sec, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(sec) || math.Abs(sec) > math.MaxInt64/float64(2*time.Second) {
		return 0, fmt.Errorf("%w %q: give a duration such as 500ms, 30s or 5m, or a number of seconds", ErrValue, s)
	}
	return time.Duration(sec * float64(time.Second)), nil
}
