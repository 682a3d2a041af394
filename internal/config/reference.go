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
// settings that it stands for.
type referenceFlag struct {
	setting
	form form
	// instead is the setting of ours that the flag stands for; "" if there is
	// no single one.
	instead string
	// lists tells that the flag is about which instances there are: the rest of
	// the list is then filled from the defaults of that proxy.
	lists bool
	// idle says why the flag is read and has no effect.
	idle string
}

// referenceFlags lists them in the order of the documentation. The meanings and
// defaults are those of the scripts: docs/migrate has a page for each.
func referenceFlags() []referenceFlag {
	elastic := func(name string, k kind, instead string) referenceFlag {
		return referenceFlag{form: formElastic, instead: instead, setting: setting{name: name, kind: k, usage: "elastic_proxy's name of --" + instead}}
	}
	lists := func(f form, k kind, usage string, names ...string) (out []referenceFlag) {
		for _, name := range names {
			out = append(out, referenceFlag{form: f, lists: true, setting: setting{name: name, kind: k, usage: usage}})
		}
		return out
	}
	idle := func(f form, name string, k kind, why string) referenceFlag {
		return referenceFlag{form: f, idle: why, setting: setting{name: name, kind: k, usage: "taken and without effect: " + why}}
	}
	return slices.Concat(
		[]referenceFlag{
			elastic("check-interval", kindDuration, "waiting-retry-interval"),
			elastic("check-times", kindInt, "max-waiting-retries"),
			elastic("retry-times", kindInt, "max-failures"),
			{form: formBalance, instead: "max-attempts", setting: setting{name: "max-retries", kind: kindInt, usage: "the load-balance proxy's name of --max-attempts"}},
			idle(formBalance, "retry-delay", kindDuration, "a failed request goes to another instance at once"),
			idle(formBalance, "workers", kindInt, "one process uses all processors"),
		},
		lists(formBalance, kindList, "instances as for the load-balance proxy: as many hosts as ports, by space",
			"prefiller-hosts", "prefiller-ports", "decoder-hosts", "decoder-ports"),
		lists(formLMCache, kindList, "instances as for LMCache's proxy: hosts or ports by comma, one of either stands for all",
			"prefiller-host", "prefiller-port", "decoder-host", "decoder-port"),
		lists(formLMCache, kindInt, "instances on consecutive ports, when there is one host and one port",
			"num-prefillers", "num-decoders"),
		lists(formLMCache, kindList, "ports of a decode instance's LMCache, one per tensor parallel rank",
			"decoder-init-port", "decoder-alloc-port"),
		[]referenceFlag{
			{form: formLMCache, lists: true, setting: setting{name: "proxy-host", kind: kindText, usage: "LMCache's proxy: host of --lmcache-notify"}},
			{form: formLMCache, lists: true, setting: setting{name: "proxy-port", kind: kindInt, usage: "LMCache's proxy: port of --lmcache-notify"}},
			idle(formLMCache, "pd-buffer-size", kindInt, "no LMCache buffer is accounted for"),
			idle(formLMCache, "chunk-size", kindInt, "no LMCache buffer is accounted for"),
		},
	)
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

// changed tells whether a flag, of ours or of a reference proxy, was given.
func (r *reference) changed(name string) bool { return r.fs.Lookup(name).Changed }

// raw is a flag's value as typed.
func (r *reference) raw(name string) string { return r.fs.Lookup(name).Value.String() }

// lists tells that the command line names instances in that form.
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
				hint = fmt.Sprintf(" (--%s is --%s here)", g.name, g.instead)
			} else if g.idle != "" {
				hint = fmt.Sprintf(" (--%s has no effect here, leave it out)", g.name)
			}
			r.fail("--%s is from the command line of %s, --%s from that of %s: use the flags of one of them%s", other, f, g.name, g.form, hint)
			return
		}
		if _, ok := first[g.form]; !ok {
			first[g.form] = g.name
		}
		if g.instead != "" && r.changed(g.instead) {
			r.fail("--%s and --%s say the same; give one of the two", g.name, g.instead)
		}
	}
}

// values reads the flags that stand for one of our settings, and those without
// effect.
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
			i := slices.IndexFunc(proxySettings(), func(s setting) bool { return s.name == g.instead })
			if err := assign(proxySettings()[i].field(r.p), r.raw(g.name)); err != nil {
				r.fail("--%s: %w", g.name, err)
				continue
			}
			r.p.sources[g.instead] = "flag --" + g.name
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
	switch g.kind {
	case kindInt:
		var n int
		return assign(&n, raw)
	case kindDuration:
		d, err := settings.Duration(raw)
		if err == nil && d < 0 {
			return fmt.Errorf("%w %q: it is negative", errValue, raw)
		}
		return err
	default:
		return nil
	}
}
