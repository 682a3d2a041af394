package leg

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/transport/netguard"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
)

var errCause = errors.New("cause")

// testOrigin is a request whose legs are never sent.
func testOrigin(client context.Context) *Origin {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return &Origin{Client: client, Settings: &Settings{Log: log, Available: func(instance.Key) bool { return false }}, Privileged: func() bool { return false }}
}

func testLeg(t *testing.T) *Leg {
	t.Helper()
	return legOf(t.Context(), t, Wait{Limit: PrefillLimit(time.Hour)})
}

// legOf returns a leg that ends with the test.
func legOf(client context.Context, t *testing.T, w Wait) *Leg {
	t.Helper()
	l := testOrigin(client).newLeg(&instance.Instance{}, nil, w)
	t.Cleanup(l.End)
	return l
}

// The standard library derives its own contexts from a leg when it dials, so a leg must behave as they
// expect.
func TestLeg_AsContext(t *testing.T) {
	t.Parallel()
	type key struct{}
	l := legOf(context.WithValue(t.Context(), key{}, "v"), t, Wait{Limit: PrefillLimit(time.Hour)})
	require.True(t, l.Err() == nil && l.Value(key{}) == "v", "running: %v, %v", l.Err(), l.Value(key{}))
	child, cancel := context.WithCancel(l)
	defer cancel()
	grandchild, cancel2 := context.WithTimeout(child, time.Hour)
	defer cancel2()
	called := make(chan struct{})
	context.AfterFunc(grandchild, func() { close(called) })
	select {
	case <-l.Done():
		t.Fatal("done before its end")
	default:
	}
	l.cancel(errCause)
	l.cancel(errDone)
	<-l.Done()
	<-grandchild.Done()
	<-called
	for _, c := range []context.Context{l, child, grandchild} {
		got := context.Cause(c)
		assert.True(t, errors.Is(got, errCause), "cause of %T: %v", c, got)
	}
	late, cancel3 := context.WithCancel(l)
	defer cancel3()
	<-late.Done()
	assert.True(t, errors.Is(context.Cause(late), errCause), "cause of a late child: %v", context.Cause(late))
}

func TestLegDeadlineMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := legOf(t.Context(), t, Wait{Limit: FirstByteLimit(time.Second)})
		time.Sleep(900 * time.Millisecond) // by the bubble's clock
		l.SetLimit(IdleLimit(time.Second))
		for range 5 {
			time.Sleep(900 * time.Millisecond)
			l.Rearm(time.Second)
		}
		synctest.Wait()
		if l.Err() != nil {
			t.Fatalf("ended though it was moved on: %v", l.Err())
		}
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, "no further byte of the answer for 1 s (--idle-timeout)", endedBy(l), "ended by")
	})
}

// endedBy returns the error of the limit that has ended a leg, "" if none has.
func endedBy(l *Leg) string {
	if e, ok := errors.AsType[*LimitError](context.Cause(l)); ok {
		return e.Error()
	}
	return ""
}

// No limit ends a leg that waits for the other leg of its pair. Once that leg is done, or from the commit on,
// it waits as long as any other leg.
func TestLeg_WaitsForPartner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := Wait{Limit: FirstByteLimit(time.Second), Partner: true}
		waits, done, committed := legOf(t.Context(), t, w), legOf(t.Context(), t, w), legOf(t.Context(), t, w)
		time.Sleep(50 * time.Minute) // by the bubble's clock
		waits.SetLimit(IdleLimit(2 * time.Second))
		time.Sleep(50 * time.Minute)
		synctest.Wait()
		assert.True(t, waits.Err() == nil && done.Err() == nil && committed.Err() == nil,
			"ended while the partner had time: %v, %v, %v", waits.Err(), done.Err(), committed.Err())
		done.PartnerDone()
		_ = committed.Commit(false)
		time.Sleep(900 * time.Millisecond)
		assert.True(t, done.Err() == nil && committed.Err() == nil,
			"ended before the limit: %v, %v", done.Err(), committed.Err())
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		const want = "no byte of an answer for 1 s (--decode-first-byte-timeout)"
		assert.True(t, endedBy(done) == want && endedBy(committed) == want && waits.Err() == nil,
			"ended by %q, %q, %v", endedBy(done), endedBy(committed), waits.Err())
	})
}

// A client that has left already ends a leg at once.
func TestLeg_ClientGone(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errCause)
	l := legOf(ctx, t, Wait{Limit: PrefillLimit(time.Hour)})
	assert.True(t, errors.Is(context.Cause(l), errCause), "ended with %v", context.Cause(l))
}

// Waiting legs are called off by a list that may be slightly out of date. A leg that was committed meanwhile
// carries an answer that the client is already reading: it must not be broken.
func TestCommittedLeg_NotCancelled(t *testing.T) {
	t.Parallel()
	waiting, committed := testLeg(t), testLeg(t)
	_ = committed.Commit(false)
	for _, l := range []*Leg{waiting, committed} {
		var listed sched.Leg = l
		listed.CallOff(errCause)
	}
	if !errors.Is(context.Cause(waiting), errCause) {
		t.Errorf("the waiting leg goes on: %v", waiting.Err())
	}
	if committed.Err() != nil {
		t.Errorf("the committed leg was ended: %v", committed.Err())
	}
}

// Only a refusal by the other side proves that no engine is there. Running out of
// sockets is the proxy's own fault; running out of ports and a slow connection may be.
func TestEject_OnlyRefusedConnections(t *testing.T) {
	t.Parallel()
	dial := func(err error) error {
		return &upstream.Error{Stage: upstream.StageNotConnected, Address: "p:1", Err: &net.OpError{Op: "dial", Err: err}}
	}
	for _, tc := range []struct {
		err   error
		class Class
		blame Blame
	}{
		{dial(syscall.ECONNREFUSED), NotConnected, BlameEject},
		{dial(syscall.EHOSTUNREACH), NotConnected, BlameEject},
		{dial(os.ErrDeadlineExceeded), ConnectTimeout, BlameStrike},
		{dial(os.NewSyscallError("socket", syscall.EMFILE)), NoSocket, BlameNone},
		{dial(syscall.ENFILE), NoSocket, BlameNone},
		{dial(syscall.ENOBUFS), NoSocket, BlameNone},
		{dial(syscall.ENOMEM), NoSocket, BlameNone},
		{dial(syscall.EADDRNOTAVAIL), NoConnection, BlameStrike},
		{dial(netguard.ErrForbidden), NoConnection, BlameStrike},
	} {
		c := classOf(tc.err)
		r := c.Rule()
		assert.True(t, c == tc.class && r.Blame == tc.blame && r.Retry && r.SameKV, "%v: %s, %+v", tc.err, c, r)
	}
}
