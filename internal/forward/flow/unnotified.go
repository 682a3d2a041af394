package flow

import (
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
)

const (
	// bypassAfter is the number of consecutive attempts without notifications after which a
	// prefill instance is bypassed.
	bypassAfter = 3
	// firstTrial is the time from the last such attempt to the first trial request. It doubles
	// with each failed trial, up to longestTrial.
	firstTrial   = time.Minute
	longestTrial = 10 * time.Minute
	// unnotifiedLogEvery is the minimum time between two log entries about one instance.
	unnotifiedLogEvery = time.Minute
	// secondNotifyWait bounds a request's wait for notifications after a first wait has
	// failed: a working instance sends them about when it answers.
	secondNotifyWait = time.Second
	// maxNotifyFailures is the number of attempts of one request that may miss their notifications.
	maxNotifyFailures = 2
)

// unnotified tracks the prefill instances whose notifications do not arrive. Requests
// bypass them, except for an occasional trial request; after a restart of the engine or its
// agent, the instance is tried at once. It is safe for concurrent use.
type unnotified struct {
	log logrus.FieldLogger

	mu    sync.Mutex // guards byKey
	byKey map[instance.Key]*missed
}

// missed is the state of one instance whose last notifications did not arrive.
type missed struct {
	incarnation string
	ports       []int  // lmcache_notify of the record; changes with a restart of the agent
	address     string // where notifications are expected
	failures    int    // in a row
	pause       time.Duration
	trial       time.Time // of the next trial request
	trying      bool      // a trial request is under way, or was not finished
	logged      time.Time
}

// of reports whether the entry is about the present processes of the engine and its agent.
func (m *missed) of(in *instance.Instance) bool {
	return m.incarnation == in.Incarnation() && slices.Equal(m.ports, in.Record.Ports[instance.PortLMCacheNotify])
}

// find returns the entry of an instance, nil if there is none; u.mu is held.
func (u *unnotified) find(in *instance.Instance) *missed {
	m := u.byKey[in.Key]
	if m != nil && !m.of(in) {
		delete(u.byKey, in.Key)
		return nil
	}
	return m
}

// bypassed reports whether an instance must not get a request. If it returns false for a
// bypassed instance, a trial is due; begin counts the request as that trial.
func (u *unnotified) bypassed(in *instance.Instance, begin bool) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	m := u.find(in)
	if m == nil || m.failures < bypassAfter {
		return false
	}
	now := time.Now()
	if now.Before(m.trial) {
		return true
	}
	if begin {
		m.trial, m.trying = now.Add(m.pause), true
	}
	return false
}

// arrived records that all notifications of an instance have arrived.
func (u *unnotified) arrived(in *instance.Instance) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if m := u.find(in); m != nil {
		delete(u.byKey, in.Key)
		if m.failures >= bypassAfter {
			u.log.WithField("instance", in.Key.String()).Info("notifications of a prefill instance arrive again: it is used again")
		}
	}
}

// failed records that notifications of an instance did not arrive at the address where they were expected.
func (u *unnotified) failed(in *instance.Instance, address string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	m := u.find(in)
	if m == nil {
		if u.byKey == nil {
			u.byKey = map[instance.Key]*missed{}
		}
		m = &missed{incarnation: in.Incarnation(), ports: in.Record.Ports[instance.PortLMCacheNotify], pause: firstTrial}
		u.byKey[in.Key] = m
	}
	now := time.Now()
	m.address = address
	m.failures++
	if m.trying {
		m.trying, m.pause = false, min(2*m.pause, longestTrial)
		m.trial = now.Add(m.pause)
	} else if m.failures == bypassAfter {
		m.trial = now.Add(m.pause)
	}
	if now.Sub(m.logged) < unnotifiedLogEvery && m.failures != bypassAfter {
		return
	}
	m.logged = now
	u.log.WithError(err).WithFields(logrus.Fields{
		"instance": in.Key.String(), "expected_at": address, "failures": m.failures, "bypassed": m.failures >= bypassAfter,
	}).Warn("notifications of a prefill instance do not arrive: check pd_proxy_host and pd_proxy_port of its LMCache configuration")
}

// list returns the addresses at which the notifications of bypassed instances are expected, by
// instance. Instances that have left the membership are forgotten.
func (u *unnotified) list(members *instance.Snapshot) map[instance.Key]string {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := map[instance.Key]string{}
	for k, m := range u.byKey {
		switch in, ok := members.Lookup(k); {
		case !ok || !m.of(in):
			delete(u.byKey, k)
		case m.failures >= bypassAfter:
			out[k] = m.address
		}
	}
	return out
}
