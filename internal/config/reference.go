package config

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/settings"
)

// form is the command line of one reference proxy. A proxy is started with
// flags of one form only: the same word means different things in two of them.
type form string

const (
	// formElastic is vllm-ascend's elastic_proxy.py; vLLM's disagg_proxy_demo.py
	// takes a part of its flags. Its --prefill and --decode are our own.
	formElastic form = "elastic_proxy"
	// formBalance is vllm-ascend's load_balance_proxy_server_example.py.
	formBalance form = "load_balance_proxy_server_example"
	// formLMCache is LMCache's disagg_proxy_server.py.
	formLMCache form = "LMCache's disagg_proxy_server"
)

// referenceFlag is a flag that only a reference proxy's command line has. It is
// a flag and nothing else: the environment, a file and --print-config know the
// settings that it represents.
type referenceFlag struct {
	settings.Setting
	form form
	// instead is the setting of ours that the flag represents; "" if there is
	// no single one.
	instead string
	// lists reports whether the flag is about which instances there are: the rest of
	// the list is then filled from the defaults of that proxy.
	lists bool
	// idle says why the flag is read and has no effect.
	idle string
}

// referenceFlags lists them in the order of the documentation. The meanings and
// defaults are those of the scripts: docs/migrate has a page for each.
func referenceFlags() []referenceFlag {
	elastic := func(name string, k settings.Kind, instead string) referenceFlag {
		return referenceFlag{form: formElastic, instead: instead, Setting: settings.Setting{Name: name, Kind: k, Spread: k == settings.List, Hidden: true, Usage: "elastic_proxy's name of --" + instead}}
	}
	lists := func(f form, k settings.Kind, usage string, names ...string) (out []referenceFlag) {
		for _, name := range names {
			out = append(out, referenceFlag{form: f, lists: true, Setting: settings.Setting{Name: name, Kind: k, Spread: k == settings.List, Hidden: true, Usage: usage}})
		}
		return out
	}
	idle := func(f form, name string, k settings.Kind, why string) referenceFlag {
		return referenceFlag{form: f, idle: why, Setting: settings.Setting{Name: name, Kind: k, Spread: k == settings.List, Hidden: true, Usage: "taken and without effect: " + why}}
	}
	return slices.Concat(
		[]referenceFlag{
			elastic("check-interval", settings.Time, "waiting-retry-interval"),
			elastic("check-times", settings.Number, "max-waiting-retries"),
			elastic("retry-times", settings.Number, "max-failures"),
			{form: formBalance, instead: "max-attempts", Setting: settings.Setting{Name: "max-retries", Kind: settings.Number, Hidden: true, Usage: "the load-balance proxy's name of --max-attempts"}},
			idle(formBalance, "retry-delay", settings.Time, "a failed request goes to another instance at once"),
			idle(formBalance, "workers", settings.Number, "one process uses all processors"),
		},
		lists(formBalance, settings.List, "instances as for the load-balance proxy: as many hosts as ports, by space",
			"prefiller-hosts", "prefiller-ports", "decoder-hosts", "decoder-ports"),
		lists(formLMCache, settings.List, "instances as for LMCache's proxy: hosts or ports by comma, one of either stands for all",
			"prefiller-host", "prefiller-port", "decoder-host", "decoder-port"),
		lists(formLMCache, settings.Number, "instances on consecutive ports, when there is one host and one port",
			"num-prefillers", "num-decoders"),
		lists(formLMCache, settings.List, "ports of a decode instance's LMCache, one per tensor parallel rank",
			"decoder-init-port", "decoder-alloc-port"),
		[]referenceFlag{
			{form: formLMCache, lists: true, Setting: settings.Setting{Name: "proxy-host", Kind: settings.Text, Hidden: true, Usage: "LMCache's proxy: host of --lmcache-notify"}},
			{form: formLMCache, lists: true, Setting: settings.Setting{Name: "proxy-port", Kind: settings.Number, Hidden: true, Usage: "LMCache's proxy: port of --lmcache-notify"}},
			idle(formLMCache, "pd-buffer-size", settings.Number, "no LMCache buffer is accounted for"),
			idle(formLMCache, "chunk-size", settings.Number, "no LMCache buffer is accounted for"),
		},
	)
}

// referenceTable has them as a table. They are Hidden: a text of its own in --help says that
// they are taken.
func referenceTable() settings.Table {
	var t settings.Table
	for _, f := range referenceFlags() {
		t = append(t, f.Setting)
	}
	return t
}

// reference reads the flags of the reference proxies into a Proxy.
type reference struct {
	p     *Proxy
	fs    *pflag.FlagSet
	given []referenceFlag
	errs  []error
}

// applyReference lets the flags of a reference proxy's command line say what
// our own settings are. They are flags: they win over environment and file.
func (p *Proxy) applyReference(fs *pflag.FlagSet) error {
	r := &reference{p: p, fs: fs}
	for _, f := range referenceFlags() {
		if flag := fs.Lookup(f.Name); flag != nil && flag.Changed {
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

// changed reports whether a flag, of ours or of a reference proxy, was given.
func (r *reference) changed(name string) bool { return r.fs.Lookup(name).Changed }

// raw is a flag's value as typed.
func (r *reference) raw(name string) string { return r.fs.Lookup(name).Value.String() }

// lists reports whether the command line names instances in that form.
func (r *reference) lists(f form) bool {
	return slices.ContainsFunc(r.given, func(g referenceFlag) bool { return g.form == f && g.lists })
}

// mixed refuses flags of two forms, and a setting under two names.
func (r *reference) mixed() {
	first := map[form]string{}
	for _, name := range []string{"prefill", "decode"} {
		if _, ok := first[formElastic]; !ok && r.changed(name) {
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
				hint = fmt.Sprintf(" (--%s is --%s here)", g.Name, g.instead)
			} else if g.idle != "" {
				hint = fmt.Sprintf(" (--%s has no effect here, leave it out)", g.Name)
			}
			r.fail("--%s is from the command line of %s, --%s from that of %s: use the flags of one of them%s", other, f, g.Name, g.form, hint)
			return
		}
		if _, ok := first[g.form]; !ok {
			first[g.form] = g.Name
		}
		if g.instead != "" && r.changed(g.instead) {
			r.fail("--%s and --%s say the same; give one of the two", g.Name, g.instead)
		}
	}
}

// values reads the flags that represent one of our settings, and those without
// effect.
func (r *reference) values() {
	for _, g := range r.given {
		switch {
		case g.idle != "":
			if err := checkIdle(g, r.raw(g.Name)); err != nil {
				r.fail("--%s: %w", g.Name, err)
				continue
			}
			r.notice("--%s has no effect: %s", g.Name, g.idle)
		case g.instead != "":
			s, _ := r.p.Settings().Find(g.instead)
			if err := settings.Assign(s.Into, r.raw(g.Name)); err != nil {
				r.fail("--%s: %w", g.Name, err)
				continue
			}
			r.p.sources[g.instead] = "flag --" + g.Name
		}
	}
	// The load-balance proxy makes one try where none is asked for.
	if r.changed("max-retries") && r.p.MaxAttempts <= 0 {
		r.p.MaxAttempts = 1
	}
	// A number of checks means a time: the scripts' own intervals belong to it.
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

// checkIdle reads a value that has no effect, so that a mistake is seen all the same.
func checkIdle(g referenceFlag, raw string) error {
	switch g.Kind {
	case settings.Number:
		var n int
		return settings.Assign(&n, raw)
	case settings.Time:
		d, err := settings.Duration(raw)
		if err == nil && d < 0 {
			return fmt.Errorf("%w %q: it is negative", settings.ErrValue, raw)
		}
		return err
	default:
		return nil
	}
}
