package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/http1"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/logging"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/internal/zmq"
)

// Validate checks everything that can be known without touching the network
// or the disk. The error lists all that is wrong, a line each, under the names
// of the flags.
func (p *Proxy) Validate() error {
	var errs []error
	bad := func(name, format string, args ...any) {
		errs = append(errs, p.complain(name, format, args...))
	}
	if err := checkHost(p.Host); err != nil {
		bad("host", "%w", err)
	}
	if p.Port < 0 || p.Port > 65535 {
		bad("port", "%d is no port; use 1 to 65535, or 0 for any free one", p.Port)
	}
	if p.AdminListen != "" {
		if err := checkListen(p.AdminListen); err != nil {
			bad("admin-listen", "%w", err)
		} else if p.Port != 0 && p.AdminListen == net.JoinHostPort(p.Host, strconv.Itoa(p.Port)) {
			bad("admin-listen", "%s is where clients are served; give another port or leave it empty", p.AdminListen)
		}
	}
	if p.PprofListen != "" {
		if err := checkListen(p.PprofListen); err != nil {
			bad("pprof-listen", "%w", err)
		} else if !instance.IsLoopback(p.PprofListen) {
			bad("pprof-listen", "%s: profiles show the inside of requests to whoever asks; use a loopback address", p.PprofListen)
		}
	}
	if p.ZMQRegister != "" {
		if _, err := zmq.ParseEndpoint(p.ZMQRegister); err != nil {
			bad("zmq-register", "%v", err)
		}
	}
	switch short, err := connector.Canonical(p.Connector); {
	case err != nil:
		bad("connector", "%w", err)
	case short == "":
		bad("connector", "%q is not known; use %s, or the name of vLLM's class", p.Connector, strings.Join(connector.Names(), " or "))
	default:
		p.Connector = short
	}
	if p.Model != instance.Printable(p.Model, 0) || len(p.Model) > 512 {
		bad("model", "%q is no model name", instance.Printable(p.Model, 80))
	}
	if p.Fallback != FallbackDecode && p.Fallback != FallbackNone {
		bad("fallback", "%q is not known; use %s or %s", p.Fallback, FallbackDecode, FallbackNone)
	}
	switch p.Disaggregate {
	case DisaggregateAlways, DisaggregateAuto, DisaggregateNever:
	default:
		bad("disaggregate", "%q is not known; use %s, %s or %s", p.Disaggregate, DisaggregateAlways, DisaggregateAuto, DisaggregateNever)
	}
	if p.Server != ServerOwn && p.Server != ServerStd {
		bad("server", "%q is not known; use %s or %s", p.Server, ServerOwn, ServerStd)
	}
	if p.Upstream != UpstreamOwn && p.Upstream != UpstreamStd {
		bad("upstream", "%q is not known; use %s or %s", p.Upstream, UpstreamOwn, UpstreamStd)
	}
	if _, err := zmq.ParseEndpoint(p.LMCacheNotify); p.LMCacheNotify != "" && err != nil {
		bad("lmcache-notify", "%w", err)
	}
	p.checkPolicies(bad)
	if !isToken(p.ClientBoundKey) {
		bad("client-bound-key", "%q is no name of a header; use letters, digits and dashes", instance.Printable(p.ClientBoundKey, 80))
	}
	if p.Zone != instance.Printable(p.Zone, 0) || len(p.Zone) > 128 || strings.TrimSpace(p.Zone) != p.Zone {
		bad("zone", "%q is no name of a zone; use up to 128 bytes, without spaces around", instance.Printable(p.Zone, 80))
	}
	p.checkCORS(bad)
	p.checkEtcd(bad)
	p.checkInstances(bad)
	p.checkKeys(bad)
	p.checkTLS(bad)
	p.checkLimits(bad)
	if u, err := url.Parse(p.OTLPEndpoint); p.OTLPEndpoint != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		bad("otlp-endpoint", "%q is no URL; give one such as http://127.0.0.1:4318", p.OTLPEndpoint)
	}
	if share, err := strconv.ParseFloat(p.TraceSample, 64); p.TraceSample != "" && (err != nil || !(share >= 0 && share <= 1)) {
		bad("trace-sample", "%q: give a share from 0 to 1, such as 0.01", p.TraceSample)
	}
	if !slices.Contains(logging.Levels(), strings.ToLower(p.LogLevel)) && !strings.EqualFold(p.LogLevel, "warning") {
		bad("log-level", "%q is not known; use %s", p.LogLevel, strings.Join(logging.Levels(), ", "))
	}
	if f := strings.ToLower(p.LogFormat); f != logging.FormatText && f != logging.FormatJSON {
		bad("log-format", "%q is not known; use text or json", p.LogFormat)
	}
	return errors.Join(errs...)
}

type complaint func(name, format string, args ...any)

func (p *Proxy) checkEtcd(bad complaint) {
	if !strings.HasPrefix(p.EtcdPrefix, "/") || strings.Trim(p.EtcdPrefix, "/") == "" || len(p.EtcdPrefix) > 200 ||
		strings.Contains(p.EtcdPrefix, "//") || p.EtcdPrefix != instance.Printable(p.EtcdPrefix, 0) {
		bad("etcd-prefix", "%q is no root for our keys; use a path such as /pd", instance.Printable(p.EtcdPrefix, 80))
	}
	if (p.EtcdUsername == "") != (p.EtcdPassword == "") {
		bad("etcd-username", "give --etcd-username and --etcd-password (or PD_ETCD_PASSWORD) together")
	}
	if p.Embedded() {
		p.checkOwnEtcd(bad)
		return
	}
	for _, name := range []string{"etcd-listen", "etcd-listen-cert", "etcd-listen-key", "etcd-listen-client-ca", "etcd-data-dir"} {
		if src := p.sources[name]; src != "" {
			bad(name, "is for the proxy's own etcd, but --etcd-endpoints (%s) says to use another; give one of the two", p.sources["etcd-endpoints"])
		}
	}
	if p.InstanceAllow == nil && !p.EtcdIsLoopback() && p.EtcdUsername == "" && p.EtcdCert == "" {
		bad("instance-allow", "required, because etcd at %s is not on loopback and asks for no password or certificate: whoever can write there "+
			"could make this proxy send prompts to any address. Name the networks your instances are in, e.g. --instance-allow 10.0.0.0/8 "+
			"(--instance-allow any takes all), or set --etcd-username and --etcd-password, or --etcd-cert", strings.Join(p.EtcdEndpoints, ","))
	}
}

func (p *Proxy) checkPolicies(bad complaint) {
	check := func(setting, name string) {
		if _, err := policy.Find(name); err != nil {
			bad(setting, "%q: %w", instance.Printable(name, 80), err)
		}
	}
	if p.Policy != "" {
		check("policy", p.Policy)
	}
	if p.CacheWeight < 1 {
		bad("cache-weight", "must be 1 or more")
	}
	if p.PrefillPolicy != p.Policy {
		check("prefill-policy", p.PrefillPolicy)
	}
	if p.DecodePolicy != p.Policy {
		check("decode-policy", p.DecodePolicy)
	}
}

func (p *Proxy) checkInstances(bad complaint) {
	check := func(name string, list []string) {
		for _, item := range list {
			address, err := instance.ParseAddress(item)
			if err != nil {
				bad(name, "%w", err)
				continue
			}
			if ap, err := netip.ParseAddrPort(address); err == nil && p.InstanceAllow != nil && !p.allows(ap.Addr()) {
				bad(name, "%s is outside the networks of --instance-allow; add it there", address)
			}
		}
	}
	check("prefill", p.Prefill)
	check("decode", p.Decode)
}

func (p *Proxy) checkKeys(bad complaint) {
	check := func(name, key string) {
		for _, c := range []byte(key) {
			if c <= ' ' || c > '~' {
				bad(name, "a key may hold visible ASCII characters only, as it travels in a header")
				return
			}
		}
	}
	for _, key := range p.APIKeys {
		if key == "" {
			bad("api-key", "a key is empty")
		}
		check("api-key", key)
	}
	check("engine-api-key", p.EngineAPIKey)
	check("admin-api-key", p.AdminAPIKey)
	if p.AdminAPIKey != "" && slices.Contains(p.APIKeys, p.AdminAPIKey) {
		bad("admin-api-key", "must differ from the keys of clients: every client could change the fleet")
	}
}

func (p *Proxy) checkLimits(bad complaint) {
	durations := []struct {
		name  string
		value time.Duration
	}{
		{"connect-timeout", p.ConnectTimeout},
		{"prefill-timeout", p.PrefillTimeout},
		{"decode-first-byte-timeout", p.DecodeFirstByteTimeout}, {"lmcache-notify-timeout", p.LMCacheNotifyTimeout},
		{"idle-timeout", p.IdleTimeout},
		{"non-stream-timeout", p.NonStreamTimeout},
		{"ejection-time", p.EjectionTime},
		{"slow-start", p.SlowStart},
		{"silence-limit", p.SilenceLimit},
		{"probe-timeout", p.ProbeTimeout},
		{"kv-lease-budget", p.KVLeaseBudget},
		{"audit-interval", p.AuditInterval},
		{"orphan-grace", p.OrphanGrace},
		{"waiting-retry-interval", p.WaitingRetryInterval},
		{"shutdown-timeout", p.ShutdownTimeout},
	}
	for _, d := range durations {
		if d.value < time.Millisecond || d.value > 7*24*time.Hour {
			bad(d.name, "%s is out of range; use 1ms to 168h", d.value)
		}
	}
	if d := p.ScrapeInterval; d != 0 && (d < 100*time.Millisecond || d > time.Hour) {
		bad("scrape-interval", "%s is out of range; use 100ms to 1h, or 0s for none", d)
	}
	// At most lease.RefreshLoad: the others weigh an older digest less and less, and a
	// drain waits for the next one.
	if d := p.LoadInterval; d < 20*time.Millisecond || d > 3*time.Second {
		bad("load-interval", "%s is out of range; use 20ms to 3s", d)
	}
	if p.MaxAttempts < 1 || p.MaxAttempts > 100 {
		bad("max-attempts", "%d is out of range; use 1 (no retry) to 100", p.MaxAttempts)
	}
	if p.MaxFailures < 1 || p.MaxFailures > 1000 {
		bad("max-failures", "%d is out of range; use 1 to 1000", p.MaxFailures)
	}
	if p.RetryBudget < 0 || p.RetryBudget > 1000 {
		bad("retry-budget", "%d is out of range; use 0 (a burst only) to 1000 percent", p.RetryBudget)
	}
	if p.MaxConnections < 0 {
		bad("max-connections", "%d is negative; use 0 for as many as the limit on descriptors leaves room for", p.MaxConnections)
	}
	if p.MaxWaitingRetries < 0 {
		bad("max-waiting-retries", "%d is negative; use 0 for ever", p.MaxWaitingRetries)
	}
	if m := p.MaxBodiesMemory; m != 0 && (m < 1<<20 || m > 1<<40) {
		bad("max-bodies-memory", "%d is out of range; use 1MiB to 1TiB, or 0 for a share of the memory limit", m)
	}
	if p.MaxBodyBytes < 1<<10 || p.MaxBodyBytes > 4<<30 {
		bad("max-body-bytes", "%d is out of range; use 1KiB to 4GiB", p.MaxBodyBytes)
	}
}

// EtcdIsLoopback tells whether only this machine reaches etcd.
func (p *Proxy) EtcdIsLoopback() bool {
	if p.Embedded() {
		return instance.IsLoopback(p.EtcdListen)
	}
	for _, e := range p.EtcdEndpoints {
		if !instance.IsLoopback(e) {
			return false
		}
	}
	return true
}

// defaultAllow is loopback, and the addresses of the command line: who starts
// the proxy may say where prompts go.
func (p *Proxy) defaultAllow() []netip.Prefix {
	allow := []netip.Prefix{
		netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("::1/128"),
	}
	for _, address := range slices.Concat(p.Prefill, p.Decode) {
		if ap, err := netip.ParseAddrPort(address); err == nil && !ap.Addr().IsLoopback() {
			one := netip.PrefixFrom(ap.Addr(), ap.Addr().BitLen())
			if !slices.Contains(allow, one) {
				allow = append(allow, one)
			}
		}
	}
	return allow
}

// noticeNames says that instances given by name are not covered by the default
// of --instance-allow: what a name means is known only when it is dialled.
func (p *Proxy) noticeNames() {
	for _, address := range slices.Concat(p.Prefill, p.Decode) {
		if _, err := netip.ParseAddrPort(address); err != nil {
			p.Notices = append(p.Notices, fmt.Sprintf("%s is given by name: it is used only if the name stands for an address that "+
				"is allowed; name its network with --instance-allow, e.g. --instance-allow 10.0.0.0/8", address))
			return
		}
	}
}

func (p *Proxy) allows(ip netip.Addr) bool {
	return slices.ContainsFunc(p.InstanceAllow, func(n netip.Prefix) bool { return n.Contains(ip.Unmap()) })
}

// checkHost checks what stands before the port of a listen address; unlike an
// instance's address it may be a wildcard.
func checkHost(host string) error {
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.IsUnspecified() {
			return nil
		}
	} else if strings.Contains(host, ":") || strings.HasPrefix(host, "[") {
		return fmt.Errorf("%q is no host; give an IP address or a name, and the port apart from it", instance.Printable(host, 80))
	}
	if _, err := instance.ParseAddress(net.JoinHostPort(host, "1")); err != nil {
		return fmt.Errorf("%q is no host; give an IP address or a name", instance.Printable(host, 80))
	}
	return nil
}

// isToken tells whether s can be the name of a header (RFC 9110, 5.6.2).
func isToken(s string) bool {
	for _, c := range []byte(s) {
		if !http1.IsToken(c) {
			return false
		}
	}
	return s != "" && len(s) <= 200
}

func checkListen(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q: give host:port", instance.Printable(s, 80))
	}
	if err := checkHost(host); err != nil {
		return err
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q: the port must be a number from 1 to 65535", instance.Printable(s, 80))
	}
	return nil
}
