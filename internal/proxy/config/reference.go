package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
)

// form is the command line of one reference proxy. The flags of two forms cannot be mixed,
// because the same name has different meanings.
type form string

const (
	// formElastic is vllm-ascend's elastic_proxy.py; vLLM's disagg_proxy_demo.py
	// has a part of its flags. Its --prefill and --decode are those of the proxy.
	formElastic form = "elastic_proxy"
	// formBalance is vllm-ascend's load_balance_proxy_server_example.py.
	formBalance form = "load_balance_proxy_server_example"
	// formLMCache is LMCache's disagg_proxy_server.py.
	formLMCache form = "LMCache's disagg_proxy_server"
)

// referenceFlag is a flag that only a reference proxy's command line has. It has no
// environment variable and no key in the file, and --print-config prints the settings that
// it changes.
type referenceFlag struct {
	name string
	kind settings.Kind
	form form
	// Exactly one of the three is set: the setting of pdmesh that the flag sets, the reason why the
	// flag has no effect, or how it names instances. A command line with a flag of the last kind names
	// all instances; lists that it omits have the defaults of that proxy.
	instead, idle, instances string
}

const (
	balanceLists = "instances: one port for each host"
	lmcacheLists = "instances: hosts or ports; one host or one port applies to all"
	lmcacheCount = "number of instances on consecutive ports of one host"
	lmcachePorts = "LMCache ports of decode instances, one per tensor parallel rank"
	lmcacheHub   = "where prefill instances send notifications, as in --lmcache-notify"
	noBuffer     = "the proxy does not account for LMCache's buffer"
)

// referenceFlags are in the order of the documentation. Meanings and defaults are those of
// the scripts; docs/migrate has a page for each.
var referenceFlags = []referenceFlag{ //nolint:gochecknoglobals // a table that nothing changes
	{name: "check-interval", kind: settings.Time, form: formElastic, instead: "waiting-retry-interval"},
	{name: "check-times", kind: settings.Number, form: formElastic, instead: "max-waiting-retries"},
	{name: "retry-times", kind: settings.Number, form: formElastic, instead: "max-failures"},
	{name: "max-retries", kind: settings.Number, form: formBalance, instead: "max-attempts"},
	{name: "retry-delay", kind: settings.Time, form: formBalance, idle: "a failed request is sent to another instance at once"},
	{name: "workers", kind: settings.Number, form: formBalance, idle: "one process uses all CPUs"},
	{name: "prefiller-hosts", kind: settings.List, form: formBalance, instances: balanceLists},
	{name: "prefiller-ports", kind: settings.List, form: formBalance, instances: balanceLists},
	{name: "decoder-hosts", kind: settings.List, form: formBalance, instances: balanceLists},
	{name: "decoder-ports", kind: settings.List, form: formBalance, instances: balanceLists},
	{name: "prefiller-host", kind: settings.List, form: formLMCache, instances: lmcacheLists},
	{name: "prefiller-port", kind: settings.List, form: formLMCache, instances: lmcacheLists},
	{name: "decoder-host", kind: settings.List, form: formLMCache, instances: lmcacheLists},
	{name: "decoder-port", kind: settings.List, form: formLMCache, instances: lmcacheLists},
	{name: "num-prefillers", kind: settings.Number, form: formLMCache, instances: lmcacheCount},
	{name: "num-decoders", kind: settings.Number, form: formLMCache, instances: lmcacheCount},
	{name: "decoder-init-port", kind: settings.List, form: formLMCache, instances: lmcachePorts},
	{name: "decoder-alloc-port", kind: settings.List, form: formLMCache, instances: lmcachePorts},
	{name: "proxy-host", kind: settings.Text, form: formLMCache, instances: lmcacheHub},
	{name: "proxy-port", kind: settings.Number, form: formLMCache, instances: lmcacheHub},
	{name: "pd-buffer-size", kind: settings.Number, form: formLMCache, idle: noBuffer},
	{name: "chunk-size", kind: settings.Number, form: formLMCache, idle: noBuffer},
}

// usage returns the description in --help-all.
func (f *referenceFlag) usage() string {
	switch {
	case f.instead != "":
		return fmt.Sprintf("%s: same as --%s", f.form, f.instead)
	case f.idle != "":
		return fmt.Sprintf("%s: no effect, because %s", f.form, f.idle)
	}
	return fmt.Sprintf("%s: %s", f.form, f.instances)
}

// referenceTable returns the flags as settings, which only --help-all lists.
func referenceTable() settings.Table {
	var t settings.Table
	for _, f := range referenceFlags {
		t = append(t, settings.Setting{Name: f.name, Kind: f.kind, Spread: f.kind == settings.List, Rare: true, Usage: f.usage()})
	}
	return settings.About("Compatibility: flags of the example proxies of vLLM, vllm-ascend and LMCache", t...)
}

// reference reads the flags of the reference proxies into a Proxy.
type reference struct {
	p     *Proxy
	fs    *pflag.FlagSet
	given []referenceFlag
	errs  []error
}

// applyReference sets our settings from the flags of a reference proxy, which take precedence
// over environment and file, like all flags.
func (p *Proxy) applyReference(fs *pflag.FlagSet) error {
	r := &reference{p: p, fs: fs}
	for _, f := range referenceFlags {
		if flag := fs.Lookup(f.name); flag != nil && flag.Changed {
			r.given = append(r.given, f)
		}
	}
	if len(r.given) == 0 {
		return nil
	}
	if r.mixed(); len(r.errs) == 0 {
		r.values()
		switch {
		case r.lists(formBalance):
			r.balance()
		case r.lists(formLMCache):
			r.lmcache()
		}
	}
	return errors.Join(r.errs...)
}

func (r *reference) fail(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf(format, args...))
}

func (r *reference) notice(format string, args ...any) {
	r.p.Notices = append(r.p.Notices, fmt.Sprintf(format, args...))
}

// changed reports whether a flag was set on the command line.
func (r *reference) changed(name string) bool { return r.fs.Lookup(name).Changed }

// raw returns the text of a flag.
func (r *reference) raw(name string) string { return r.fs.Lookup(name).Value.String() }

// rawOr returns the text of a flag, or def if it is not set.
func (r *reference) rawOr(flag, def string) string {
	if !r.changed(flag) {
		return def
	}
	return r.raw(flag)
}

// lists reports whether the command line names instances in a form.
func (r *reference) lists(f form) bool {
	return slices.ContainsFunc(r.given, func(g referenceFlag) bool { return g.form == f && g.instances != "" })
}

// mixed refuses flags of two forms, and a setting under two names.
func (r *reference) mixed() {
	first := map[form]string{}
	for _, name := range []string{"decode", "prefill"} {
		if r.changed(name) {
			first[formElastic] = name
		}
	}
	for _, g := range r.given {
		for f, other := range first {
			if f == g.form {
				continue
			}
			hint := ""
			if g.instead != "" {
				hint = fmt.Sprintf(" (--%s is --%s here)", g.name, g.instead)
			} else if g.idle != "" {
				hint = fmt.Sprintf(" (--%s has no effect here, leave it out)", g.name)
			}
			r.fail("--%s is from the command line of %s, --%s from that of %s: use the flags of one of them%s", other, f, g.name, g.form, hint)
			return
		}
		first[g.form] = cmp.Or(first[g.form], g.name)
		if g.instead != "" && r.changed(g.instead) {
			r.fail("--%s and --%s are the same setting; remove one of the two", g.name, g.instead)
		}
	}
}

// values reads the flags that set one of our settings, and checks those without effect.
func (r *reference) values() {
	for _, g := range r.given {
		switch {
		case g.idle != "":
			if err := checkIdle(g, r.raw(g.name)); err != nil {
				r.fail("--%s: %w", g.name, err)
				continue
			}
			r.notice("--%s has no effect: %s", g.name, g.idle)
		case g.instead != "":
			s, _ := r.p.Settings().Find(g.instead)
			if err := settings.Assign(s.Into, r.raw(g.name)); err != nil {
				r.fail("--%s: %w", g.name, err)
				continue
			}
			r.p.sources[g.instead] = "flag --" + g.name
		}
	}
	// The load-balance proxy makes at least one attempt.
	if r.changed("max-retries") && r.p.MaxAttempts <= 0 {
		r.p.MaxAttempts = 1
	}
	// The flag for the number of checks also implies the interval of the script.
	if r.p.sources["waiting-retry-interval"] == "" {
		switch {
		case r.changed("check-times"):
			r.p.WaitingRetryInterval = 5 * time.Second
			r.p.sources["waiting-retry-interval"] = "flag --check-times"
		case r.changed("max-waiting-retries") && r.given[0].form == formBalance:
			r.p.WaitingRetryInterval = 10 * time.Second
			r.p.sources["waiting-retry-interval"] = "flag --max-waiting-retries"
		}
	}
}

// checkIdle checks a value that has no effect, so that a mistake is reported anyway.
func checkIdle(g referenceFlag, raw string) error {
	switch g.kind {
	case settings.Number:
		var n int
		return settings.Assign(&n, raw)
	case settings.Time:
		d, err := settings.Duration(raw)
		if err == nil && d < 0 {
			return fmt.Errorf("%w %q: must not be negative", settings.ErrValue, raw)
		}
		return err
	default:
		return nil
	}
}
