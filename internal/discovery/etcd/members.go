package etcd

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/transport/netguard"
)

// MembersOptions configure Members. Client has to be set.
type MembersOptions struct {
	Client *clientv3.Client
	// Interval is the mean time between two reads of the member list, default 30 s.
	Interval time.Duration
	// Load returns the members that Save wrote in an earlier process; nil: none are saved.
	Load func() (SavedMembers, error)
	Save func(SavedMembers) error
	Log  logrus.FieldLogger // nil: silent
}

// SavedMembers are the members of a cluster, saved for the next start of the process.
type SavedMembers struct {
	Configured []string `json:"configured"` // endpoints for which the rest is valid
	Cluster    uint64   `json:"cluster,string"`
	Members    []string `json:"members"` // host:port
}

// MembersStatus is the state of Members.
type MembersStatus struct {
	// Added are the endpoints of members in use besides the configured ones.
	Added []string
	// Departed are the configured endpoints that are not in the member list, and did not answer as a member.
	Departed []string
}

// Members keeps the endpoints of a client up to date while the members of its etcd cluster are
// replaced at other addresses. The configured endpoints always stay, unless another cluster serves
// there; members are added to them. The client library's Sync instead replaces the list by the
// advertised addresses, which may be loopback, unreachable, or those of another host.
type Members struct {
	o          MembersOptions
	log        logrus.FieldLogger
	configured []string

	// Used by the goroutine of Run only.
	cluster uint64            // 0: not known
	known   map[string]uint64 // candidate endpoints, with the ids of members; 0 if from a file
	foreign map[string]bool   // configured endpoints where another cluster serves
	checks  int
	saved   SavedMembers
	failed  bool // whether the last save failed

	status atomic.Pointer[MembersStatus]
}

// NewMembers returns Members for the current endpoints of a client.
func NewMembers(o MembersOptions) *Members {
	o.Interval = cmp.Or(o.Interval, 30*time.Second)
	m := &Members{o: o, log: LogOrDiscard(o.Log), configured: slices.Clone(o.Client.Endpoints())}
	m.status.Store(&MembersStatus{})
	return m
}

// Status returns the current state, whose lists must not be changed. It is safe for concurrent use,
// also on nil.
func (m *Members) Status() MembersStatus {
	if m == nil {
		return MembersStatus{}
	}
	return *m.status.Load()
}

// Run reads the member list until ctx ends.
func (m *Members) Run(ctx context.Context) {
	m.load()
	for {
		m.update(ctx)
		if !sleep.For(ctx, Jitter(m.o.Interval)) {
			return
		}
	}
}

// load reads the members that an earlier process has saved for the same configured endpoints.
func (m *Members) load() {
	if m.o.Load == nil {
		return
	}
	s, err := m.o.Load()
	if err != nil {
		m.log.WithError(err).Debug("no saved list of etcd members")
		return
	}
	if !slices.Equal(s.Configured, m.configured) || s.Cluster == 0 {
		return
	}
	m.saved, m.cluster, m.known = s, s.Cluster, make(map[string]uint64, len(s.Members))
	for _, address := range s.Members {
		if slices.Contains(m.configured, address) || !usableMember(address) {
			continue
		}
		m.known[address] = 0
	}
}

// update reads the member list once and applies it. Without an answer, it tries the known members
// that are not used yet: the others may all have been replaced.
func (m *Members) update(ctx context.Context) {
	cctx, cancel := context.WithTimeout(ctx, CallTimeout)
	resp, err := m.o.Client.MemberList(cctx)
	cancel()
	switch {
	case ctx.Err() != nil:
		return
	case err != nil || resp.Header.GetClusterId() == 0: // etcd's gRPC proxy lists itself, without a cluster
		m.log.WithError(err).Debug("etcd does not list its members")
		if len(m.foreign) > 0 && !m.stillServed(ctx) {
			m.foreign = nil // only the other cluster is left
		}
		m.apply(ctx)
		return
	case m.cluster != 0 && resp.Header.GetClusterId() != m.cluster && m.stillServed(ctx):
		m.apply(ctx)
		return
	}
	cluster, members := resp.Header.GetClusterId(), m.candidates(ctx, resp.Members)
	changed := cluster != m.cluster
	m.cluster, m.known = cluster, members
	if changed {
		m.foreign = nil
		m.setAdded(nil) // they were members of another cluster
	}
	if m.checks%checkEvery == 0 || changed {
		m.checkConfigured(ctx, resp.Members)
	}
	m.checks++
	m.apply(ctx)
}

// checkEvery is the number of reads of the member list from one check of the configured
// endpoints to the next.
const checkEvery = 4

// candidates returns the members that may be used as additional endpoints, with their ids. A
// learner serves no linearizable reads, and a member that was never started has no URL.
func (m *Members) candidates(ctx context.Context, list []*pb.Member) map[string]uint64 {
	out := make(map[string]uint64, len(list))
	for _, one := range list {
		if one.GetIsLearner() {
			continue
		}
		for _, u := range one.GetClientURLs() {
			address, ok := memberAddress(u, overTLS(m.o.Client))
			if ok && !slices.Contains(m.configured, address) && usableMember(address) && resolvesToUsable(ctx, address) {
				out[address] = one.GetID()
			}
		}
	}
	return out
}

// memberAddress returns the host:port of a client URL, if it uses TLS exactly when the configured
// endpoints do.
func memberAddress(text string, secure bool) (string, bool) {
	u, err := url.Parse(text)
	if err != nil || u.Port() == "" || u.Hostname() == "" || (u.Scheme == "https") != secure || u.Scheme != "http" && u.Scheme != "https" {
		return "", false
	}
	return net.JoinHostPort(u.Hostname(), u.Port()), true
}

// usableMember reports whether a member's address means the same on every host. Loopback, which
// etcd advertises by default, does not, nor does a wildcard, a link-local address or a cloud's
// metadata service.
func usableMember(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		name := strings.TrimSuffix(strings.ToLower(host), ".")
		return name != "localhost" && !strings.HasSuffix(name, ".localhost")
	}
	return !ip.Unmap().IsLoopback() && netguard.New(nil).Check(ip) == nil
}

// resolvesToUsable reports whether the host in an address resolves now, and only to IP addresses that
// usableMember accepts.
func resolvesToUsable(ctx context.Context, address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	return err == nil && !slices.ContainsFunc(ips, func(ip netip.Addr) bool { return !usableMember(net.JoinHostPort(ip.String(), port)) })
}

// memberTimeout bounds one query of a member or its name.
const memberTimeout = 2 * time.Second

// errAnotherCluster is the reason why an endpoint is not used.
var errAnotherCluster = errors.New("another etcd cluster serves there")

// identify returns the id of the member at an endpoint. Over TLS, its certificate must be valid
// for the host of the endpoint, as for every connection of the client.
func (m *Members) identify(ctx context.Context, endpoint string) (member uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	s, err := m.o.Client.Status(ctx, endpoint)
	if err != nil {
		return 0, err
	}
	if s.Header.GetClusterId() != m.cluster {
		return 0, errAnotherCluster
	}
	return s.Header.GetMemberId(), nil
}

// stillServed reports whether the known cluster still answers at any endpoint, although another
// cluster has answered the client. If so, it excludes the endpoints of the other cluster.
func (m *Members) stillServed(ctx context.Context) bool {
	served := false
	foreign := map[string]bool{}
	for _, endpoint := range slices.Concat(m.configured, m.Status().Added) {
		_, err := m.identify(ctx, endpoint)
		served = served || err == nil
		foreign[endpoint] = errors.Is(err, errAnotherCluster)
	}
	if served {
		m.setForeign(foreign)
	}
	return served
}

// checkConfigured finds the configured endpoints that do not answer as a member. One that is
// not in the member list may be a name or a load balancer of a member.
func (m *Members) checkConfigured(ctx context.Context, list []*pb.Member) {
	listed := map[string]bool{}
	ids := map[uint64]bool{}
	for _, one := range list {
		ids[one.GetID()] = true
		for _, u := range one.GetClientURLs() {
			if address, ok := memberAddress(u, overTLS(m.o.Client)); ok {
				listed[address] = true
			}
		}
	}
	foreign := map[string]bool{}
	var departed []string
	for _, endpoint := range m.configured {
		if listed[endpoint] {
			continue
		}
		id, err := m.identify(ctx, endpoint)
		foreign[endpoint] = errors.Is(err, errAnotherCluster)
		if err != nil || !ids[id] {
			departed = append(departed, endpoint)
		}
	}
	if ctx.Err() != nil {
		return
	}
	m.setForeign(foreign)
	was := m.Status()
	m.status.Store(&MembersStatus{Added: was.Added, Departed: departed})
	for _, endpoint := range departed {
		if !slices.Contains(was.Departed, endpoint) {
			m.log.WithField("endpoint", endpoint).Warn("configured etcd endpoint is not a member of the cluster, or does not answer: update --etcd-endpoints if the member was replaced")
		}
	}
}

// setForeign records the endpoints at which another cluster serves.
func (m *Members) setForeign(foreign map[string]bool) {
	for _, endpoint := range m.configured {
		if foreign[endpoint] && !m.foreign[endpoint] {
			m.log.WithField("endpoint", endpoint).Warn("configured etcd endpoint serves another cluster: not used")
		}
	}
	m.foreign = foreign
}

// apply sets the endpoints of the client to the configured ones and those known members whose
// answers prove that they belong to the cluster. It does not check members in use again.
func (m *Members) apply(ctx context.Context) {
	var added []string
	used := m.Status().Added
	for address, want := range m.known {
		if slices.Contains(used, address) && !m.foreign[address] {
			added = append(added, address)
			continue
		}
		id, err := m.identify(ctx, address)
		if err == nil && (want == 0 || id == want) {
			added = append(added, address)
		} else {
			m.log.WithField("endpoint", address).WithError(err).Debug("a listed etcd member is not used")
		}
	}
	if ctx.Err() != nil {
		return
	}
	slices.Sort(added)
	m.setAdded(added)
}

// setAdded sets the endpoints of the client, and saves them.
func (m *Members) setAdded(added []string) {
	endpoints := slices.DeleteFunc(slices.Clone(m.configured), func(e string) bool { return m.foreign[e] && len(added) > 0 })
	endpoints = append(endpoints, added...)
	if !slices.Equal(endpoints, m.o.Client.Endpoints()) {
		m.o.Client.SetEndpoints(endpoints...)
		m.log.WithField("endpoints", strings.Join(endpoints, ",")).Info("etcd endpoints changed")
	}
	m.status.Store(&MembersStatus{Added: added, Departed: m.Status().Departed})
	now := SavedMembers{Configured: m.configured, Cluster: m.cluster, Members: added}
	if m.o.Save == nil || len(added) == 0 && len(m.saved.Members) == 0 || now.Cluster == m.saved.Cluster && slices.Equal(now.Members, m.saved.Members) {
		return
	}
	if err := m.o.Save(now); err != nil {
		if !m.failed {
			m.log.WithError(err).Warn("save etcd members: trying again at the next read")
		}
		m.failed = true
		return
	}
	m.saved, m.failed = now, false
}
