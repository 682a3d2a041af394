// Package settings is the one way to say a setting to any program. A program has a table of
// them, in which each has one name: the flag --etcd-prefix is PD_ETCD_PREFIX in the
// environment and etcd-prefix in the file.
//
//	flags  >  environment (PD_...)  >  file (--config)  >  defaults
//
// From the table follow the flags and --help (Register), the checked values (Load, Fill),
// what --print-config writes (Print) and the reference for readers (Reference). Values are
// read by the same code wherever they come from, so that "30s", "32MiB" and "on" mean the
// same in all places. Every complaint names the setting as a flag and says which source the
// bad value came from. A variable that is set but empty counts as not set.
//
// It is the only package that knows viper.
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

// duration is the value of a flag of DurationVar.
type duration time.Duration

// DurationVar adds a flag that is no setting and takes what Duration takes.
func DurationVar(fs *pflag.FlagSet, p *time.Duration, name string, value time.Duration, usage string) {
	*p = value
	fs.Var((*duration)(p), name, usage)
}

// String implements pflag.Value.
func (d *duration) String() string { return time.Duration(*d).String() }

// Set implements pflag.Value.
func (d *duration) Set(s string) error {
	v, err := Duration(s)
	if err == nil {
		*d = duration(v)
	}
	return err
}

// Type implements pflag.Value.
func (d *duration) Type() string { return string(Time) }
