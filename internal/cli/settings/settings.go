// Package settings reads the settings of all programs. A program has a table of settings, each
// with one name: the flag --etcd-prefix is PD_ETCD_PREFIX in the environment and etcd-prefix
// in the file.
//
//	flags  >  environment (PD_...)  >  file (--config)  >  defaults
//
// The table defines the flags (Register), --help (Usage), the values (Load, Fill), the output
// of --print-config (Print) and the reference pages (package test/docs). The same code parses all
// sources, so that "30s", "32MiB" and "on" mean the same everywhere. Errors name the setting
// as a flag, and the source of the value. An empty variable counts as not set.
//
// No other package uses viper.
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

// ErrValue is wrapped by errors about values that cannot be parsed.
var ErrValue = errors.New("bad value")

// Lookup finds environment variables, as os.LookupEnv does.
type Lookup func(name string) (string, bool)

// env is an environment variable that is set.
type env struct{ variable, value string }

// Switch parses a value that is on or off.
func Switch(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "on", "true", "yes", "1":
		return true, nil
	case "off", "false", "no", "0":
		return false, nil
	}
	return false, fmt.Errorf("%w %q: use on or off", ErrValue, s)
}

// Duration parses a duration in Go's notation or, like other proxies, a number of seconds.
func Duration(s string) (time.Duration, error) {
	if d, err := time.ParseDuration(s); err == nil {
		return d, nil
	}
	sec, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(sec) || math.Abs(sec) > math.MaxInt64/float64(2*time.Second) {
		return 0, fmt.Errorf("%w %q: must be a duration such as 500ms, 30s or 5m, or a number of seconds", ErrValue, s)
	}
	return time.Duration(sec * float64(time.Second)), nil
}

// duration is the value of a flag of DurationVar.
type duration time.Duration

// DurationVar adds a flag without a setting that Duration parses.
func DurationVar(fs *pflag.FlagSet, p *time.Duration, name string, value time.Duration, usage string) {
	*p = value
	fs.Var((*duration)(p), name, usage)
}

// String implements pflag.Value.
func (d *duration) String() string { return time.Duration(*d).String() }

// Set implements pflag.Value.
func (d *duration) Set(s string) error {
	return into((*time.Duration)(d))(Duration(s))
}

// Type implements pflag.Value.
func (d *duration) Type() string { return string(Time) }
