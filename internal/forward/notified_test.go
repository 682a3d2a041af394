package forward_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/engine/lmcache"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/flow"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// Eight ranks notify in any order: before the HTTP answer, after it, or some before and some after. The proxy
// sends decode after the eighth notification and not earlier.
func TestNotifiedByEightRanks(t *testing.T) {
	t.Parallel()
	const ranks = 8
	for _, before := range []int{0, 3, 7, 8} {
		t.Run(fmt.Sprintf("%d before the answer", before), func(t *testing.T) {
			t.Parallel()
			w := startNotified(t, 1, 1, ranks, nil)
			got := w.begin(t.Context(), chatBody(true, `,"tools":[{"type":"function","function":{"name":"f"}}]`))
			p := w.leg(instance.Prefill)
			if len(p.spec.Init) != ranks || len(p.spec.Alloc) != ranks || p.spec.Host != "127.0.0.1" || p.spec.ID == "" || p.tag == "" {
				t.Fatalf("disagg_spec %+v, tag %s", p.spec, p.tag)
			}
			order := rand.Perm(ranks)
			for _, rank := range order[:before] {
				w.notify(rank, p.spec.ID)
				w.notify(rank, p.spec.ID) // twice: one rank counts once
			}
			w.roundTrip()
			w.noLeg("notifications without an answer")
			p.reply(ok)
			for i, rank := range order[before:] {
				if before+i+1 == ranks {
					w.roundTrip() // by now the proxy has handled the other notifications
				}
				w.noLeg(fmt.Sprintf("%d of %d notifications", before+i, ranks))
				w.notify(rank, p.spec.ID)
				if before+i+1 < ranks {
					w.notify(rank, p.spec.ID)
				}
			}
			d := w.leg(instance.Decode)
			assert.True(t, d.tag == p.tag && d.spec.ID == "" && strings.Contains(string(d.body), `"tools"`),
				"decode got %s", d.body)
			d.reply(streams)
			if e := w.checkServed(got); e.DecodeOnly != "" || e.Failed != 0 || e.Prefill != w.P[0].Address || e.Decode != w.D[0].Address {
				t.Errorf("%+v", e)
			}
		})
	}
}

// If only seven of eight ranks notify, one of them twice, decode is never sent. The attempt ends at its
// deadline and is counted, and another pair serves.
func TestNotificationLost(t *testing.T) {
	t.Parallel()
	const ranks = 8
	w := startNotified(t, 2, 1, ranks, func(o *forward.Options) { o.Notified = 3 * time.Second }) // the second attempt must not take as long
	got := w.begin(t.Context(), chatBody(true, ""))
	first := w.leg(instance.Prefill)
	for rank := range ranks - 1 {
		w.notify(rank, first.spec.ID)
	}
	w.notify(3, first.spec.ID)
	first.reply(ok)
	second := w.leg(instance.Prefill) // and not decode
	require.True(t, second.address != first.address && second.spec.ID != first.spec.ID && second.tag != first.tag,
		"tried again as %s at %s", second.spec.ID, second.address)
	w.notify(ranks-1, first.spec.ID) // too late, and for an attempt that has ended
	w.notifyAll(second)
	second.reply(ok)
	d := w.leg(instance.Decode)
	assert.Equal(t, second.tag, d.tag, "decode reads what %s left, not %s", d.tag, second.tag)
	d.reply(streams)
	e := w.checkServed(got)
	assert.True(t, e.Failed == 1 && e.Prefill == second.address, "%+v", e)
	assert.Equal(t, "prefill/not_notified", w.rig.rec.retried(), "retried")
}

// With a single pair, an attempt without notifications is not repeated: a request waits at most once. Decode
// serves it, with the reason. After three such requests, no request waits any more: the log has a warning,
// and the proxy lists the instance with the address at which it expects notifications. A new incarnation of
// the engine, or of its agent (with another port), is tried at once and used again.
func TestNotificationsNeverCome(t *testing.T) {
	t.Parallel()
	log, lines := logtest.NewNullLogger()
	var inbox *lmcache.Inbox
	w := startNotified(t, 1, 1, 1, func(o *forward.Options) {
		o.Notified, o.RetryRatio, o.Config.Log = 2*time.Second, -1, log
		asker := o.Notifications.(*countedWaits).Notifications.(*lmcache.Waiter)
		asker.OwnAddress, inbox = "tcp://10.0.0.1:8500", asker.Own
	})
	serve := func(prefill bool) {
		t.Helper()
		got := w.begin(t.Context(), chatBody(true, ""))
		if prefill {
			w.leg(instance.Prefill).reply(ok)
		}
		d := w.leg(instance.Decode)
		assert.True(t, d.tag == "" && !strings.Contains(string(d.body), "kv_transfer_params"), "decode-only: %s", d.body)
		d.reply(streams)
		e := w.checkServed(got)
		assert.True(t, e.DecodeOnly == "not_notified" && (e.Failed == 1) == prefill, "%+v", e)
	}
	for range 3 {
		assert.Len(t, w.rig.handler.Unnotified(), 0, "bypassed too early")
		serve(true)
	}
	const expected = "tcp://10.0.0.1:8500 of the proxy (--lmcache-notify)"
	list := w.rig.handler.Unnotified()
	assert.True(t, len(list) == 1 && list[w.P[0].Key] == expected, "bypassed: %v", list)
	for range 5 {
		serve(false)
	}
	warnings := 0
	for _, e := range lines.AllEntries() {
		if e.Data["expected_at"] == expected && e.Data["instance"] == w.P[0].Key.String() && e.Level == logrus.WarnLevel {
			warnings++
		}
	}
	if warnings != 2 { // the first failure, and the bypass
		t.Errorf("%d warnings of %d lines", warnings, len(lines.AllEntries()))
	}
	agent := httptest.NewServer(lmcache.Handler(inbox))
	defer agent.Close()
	port := agent.Listener.Addr().(*net.TCPAddr).Port
	for name, restart := range map[string]func(*instance.Record){
		"agent":  func(r *instance.Record) { r.Ports = map[string][]int{instance.PortLMCacheNotify: {port}} },
		"engine": func(r *instance.Record) { r.ID += "-restarted" },
	} {
		again := *w.P[0]
		restart(&again.Record)
		w.P[0] = &again
		w.join()
		w.roundTrip()
		assert.Len(t, w.rig.handler.Unnotified(), 0, "bypassed after a restart of the %s", name)
		for range 3 {
			serve(true)
		}
	}
}

// Requests go to a prefill instance whose notifications arrive instead of to a bypassed one.
func TestNotificationsOfAnotherPrefill(t *testing.T) {
	t.Parallel()
	w := startNotified(t, 2, 1, 1, func(o *forward.Options) { o.Notified, o.RetryRatio = 2*time.Second, -1 })
	silent := ""
	for i := 0; i < 64 && len(w.rig.handler.Unnotified()) == 0; i++ {
		got := w.begin(t.Context(), chatBody(true, ""))
		l := await(t, "a leg", w.legs)
		for l.role == instance.Prefill {
			if silent == "" {
				silent = l.address
			}
			if l.address != silent {
				w.notifyAll(l)
			}
			l.reply(ok)
			l = await(t, "a leg", w.legs)
		}
		l.reply(streams)
		w.checkServed(got)
	}
	if list := w.rig.handler.Unnotified(); len(list) != 1 || list[instance.Key{Role: instance.Prefill, Address: silent}] == "" {
		t.Fatalf("bypassed: %v, silent is %s", list, silent)
	}
	for range 4 {
		got := w.begin(t.Context(), chatBody(true, ""))
		p := w.leg(instance.Prefill)
		assert.NotEqual(t, silent, p.address, "sent to the silent instance")
		w.notifyAll(p)
		p.reply(ok)
		w.leg(instance.Decode).reply(streams)
		e := w.checkServed(got)
		assert.True(t, e.DecodeOnly == "" && e.Failed == 0, "%+v", e)
	}
}

// If none of three prefill instances notifies, a request makes two attempts, and the second one does not wait
// long.
func TestNotifications_NoneArrive(t *testing.T) {
	t.Parallel()
	w := startNotified(t, 3, 1, 1, func(o *forward.Options) { o.Notified, o.RetryRatio = 50*time.Millisecond, -1 })
	got := w.begin(t.Context(), chatBody(true, ""))
	w.leg(instance.Prefill).reply(ok)
	w.leg(instance.Prefill).reply(ok)
	w.leg(instance.Decode).reply(streams)
	e := w.checkServed(got)
	assert.True(t, e.DecodeOnly == "not_notified" && e.Failed == 2, "%+v", e)
}

// If the client leaves while prefill computes, between prefill's answer and the notifications, or while
// decode computes, both legs end, and no other leg is sent.
func TestNotifiedClientLeaves(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"prefill", "notifications", "decode"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := startNotified(t, 1, 1, 1, nil)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			got := w.begin(ctx, chatBody(true, ""))
			l := w.leg(instance.Prefill)
			if at != "prefill" {
				l.reply(ok)
			}
			if at == "decode" {
				w.notify(0, l.spec.ID)
				l = w.leg(instance.Decode)
			}
			leave()
			e := w.rig.entry()
			assert.Equal(t, relay.OutcomeClientGone, e.Outcome, "%+v", e)
			await(t, "the end of the leg", l.left)
			<-got
			eventually(t, "the wait is over", func() bool { return w.waits.over.Load() == 1 })
			w.noLeg("the client left")
			w.rig.checkEngines()
		})
	}
}

// A request whose prefill is refused for its forced tool call becomes decode-only. It counts once at decode,
// and no longer for the abandoned pair.
func TestNotifiedPrefillRefuses(t *testing.T) {
	t.Parallel()
	w := startNotified(t, 1, 1, 1, nil)
	got := w.begin(t.Context(), chatBody(true, `,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required"`))
	w.leg(instance.Prefill).reply(fails(400))
	d := w.leg(instance.Decode)
	assert.EqualValues(t, 1, w.rig.sched.InFlight(w.D[0].Key), "legs in flight at decode")
	d.reply(streams)
	e := w.checkServed(got)
	assert.Equal(t, "forced_tool", e.DecodeOnly, "%+v", e)
}

// If an instance of the pair leaves the membership or restarts while prefill computes, or while the proxy
// waits for notifications, the attempt ends at once.
func TestNotifiedInstanceRemoved(t *testing.T) {
	t.Parallel()
	for _, role := range []instance.Role{instance.Prefill, instance.Decode} {
		for _, answered := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, answered=%v", role, answered), func(t *testing.T) {
				t.Parallel()
				w := startNotified(t, 2, 2, 1, nil)
				got := w.begin(t.Context(), chatBody(true, ""))
				p := w.leg(instance.Prefill)
				if answered {
					p.reply(ok)
				}
				list := w.P
				if role == instance.Decode {
					list = w.D
				}
				for i, one := range list {
					// The first by address of each role was picked.
					if one.Address == p.address || role == instance.Decode && one.Address == min(list[0].Address, list[1].Address) {
						next := *one
						next.Record.ID += "again"
						list[i] = &next
					}
				}
				w.join()
				again := w.leg(instance.Prefill)
				again.reply(ok)
				w.notify(0, again.spec.ID)
				d := w.leg(instance.Decode)
				assert.Equal(t, again.tag, d.tag, "decode reads %s, sent was %s", d.tag, again.tag)
				d.reply(streams)
				e := w.checkServed(got)
				assert.Equal(t, 1, e.Failed, "%+v", e)
				assert.Equal(t, string(role)+"/gone", w.rig.rec.retried(), "retried")
			})
		}
	}
}

// Pairs whose notifications cannot be received, or whose ranks differ, are not tried: the
// request becomes decode-only, with the reason.
func TestNotifiedUnfit(t *testing.T) {
	t.Parallel()
	for _, want := range []string{"not_heard", "ranks_differ"} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			w := startNotified(t, 1, 1, 2, func(o *forward.Options) {
				if want == "not_heard" {
					o.Notifications = nil
				}
			})
			if want == "ranks_differ" {
				w.P[0].Record.TPSize = 4
				w.join()
			}
			got := w.begin(t.Context(), chatBody(true, ""))
			w.leg(instance.Decode).reply(streams)
			e := w.checkServed(got)
			assert.Equal(t, want, e.DecodeOnly, "%+v", e)
		})
	}
}

// Requests go to a prefill instance whose notifications can be received instead of to one whose cannot.
func TestNotified_Unreceivable(t *testing.T) {
	t.Parallel()
	var c unheardNotifications
	w := startNotified(t, 2, 1, 1, func(o *forward.Options) { c.Notifications = o.Notifications; o.Notifications = &c })
	first, all := min(w.P[0].Address, w.P[1].Address), ""
	c.unheard.Store(&first)
	w.roundTrip()
	c.unheard.Store(&all)
	got := w.begin(t.Context(), chatBody(true, ""))
	w.leg(instance.Decode).reply(streams)
	e := w.checkServed(got)
	assert.True(t, e.DecodeOnly == "not_heard" && e.Prefill == "" && e.Failed == 0, "%+v", e)
}

// unheardNotifications cannot receive the notifications of one instance.
type unheardNotifications struct {
	flow.Notifications

	unheard atomic.Pointer[string] // address; "" for all
}

func (u *unheardNotifications) CannotReceive(in *instance.Instance) error {
	if at := *u.unheard.Load(); at == "" || at == in.Address {
		return lmcache.ErrNoReceiver
	}
	return nil
}

// The engines write slowly, so that a decode which began too early would answer incorrectly. Concurrent
// requests with one prompt do not read each other's chunks.
func TestNotified_CorrectAnswers(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.LMCache, 2, 2, nil)
	var n atomic.Int64
	for _, p := range r.P {
		p.SetNotices(fakevllm.NoticePlan{
			After:  true,
			Listed: func(int) { time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond) },
			Times: func(int) int { // some notifications are lost, some arrive twice
				switch i := n.Add(1); {
				case i%97 == 0:
					return 0
				case i%5 == 0:
					return 2
				}
				return 1
			},
		})
	}
	body := chatBody(true, "")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 6 {
				r.checkComplete(r.post("/v1/chat/completions", body), true, body)
			}
		})
	}
	all.Wait()
	r.checkEngines()
	assert.EqualValues(t, 0, total(r.D, func(c fakevllm.Counters) int64 { return c.WrongKV }), "read too early")
}
