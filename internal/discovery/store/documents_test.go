package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// Each change of a document has an audit entry with both values. Writing an
// equal value changes nothing, and concurrent writes are serialized.
func TestDocuments(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	s := store.New(cli, l, "ann")
	k := instance.Key{Role: schema.Limits, Address: "team-a"}
	change := func(value string, changes bool) {
		t.Helper()
		if revision, err := s.Documents.Put(t.Context(), k, []byte(value), store.DocumentOptions{Reason: "why"}); err != nil || revision > 0 != changes {
			t.Fatal(revision, err)
		}
	}
	change(`{"n":""}`, true)
	change(`{"n":""}`, false)
	change(`{"n":"b"}`, true)
	if revision, err := s.Documents.Delete(t.Context(), k, ""); err != nil || revision == 0 {
		t.Fatal(revision, err)
	}
	if revision, err := s.Documents.Delete(t.Context(), k, ""); err != nil || revision != 0 {
		t.Fatal(revision, err)
	}
	log, err := s.Reader.AuditLog(t.Context(), 0)
	if err != nil || len(log) != 3 {
		t.Fatal(log, err)
	}
	if e := log[1]; e.What != "set" || e.Who != "ann" || e.Why != "why" || e.Role != schema.Limits || e.Address != "team-a" {
		t.Errorf("%+v", e)
	}
	var got []string
	for _, e := range log {
		text, err := json.Marshal(e.Changes)
		require.NoError(t, err)
		got = append(got, e.What+string(text))
	}
	if want := []string{
		`delete[{"key":"limits/team-a","before":"{\"n\":\"b\"}"}]`,
		`set[{"key":"limits/team-a","before":"{\"n\":\"\"}","after":"{\"n\":\"b\"}"}]`,
		`set[{"key":"limits/team-a","after":"{\"n\":\"\"}"}]`,
	}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}

	change(`{"n":""}`, true)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if _, err := s.Documents.Put(t.Context(), k, fmt.Appendf(nil, `{"n":"%d"}`, i), store.DocumentOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	log, err = s.Reader.AuditLog(t.Context(), 8)
	require.NoError(t, err)
	for i, e := range log[:7] {
		before, after := e.Changes[0].Before, log[i+1].Changes[0].After
		assert.True(t, e.What == "set" && *before == *after, "%s of %s follows %s", e.What, *before, *after)
	}

	for _, bad := range []string{"", "[]", "{", "{}{}"} {
		var rejected *schema.RejectedError
		if _, err := s.Documents.Put(t.Context(), k, []byte(bad), store.DocumentOptions{}); !errors.As(err, &rejected) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	_, err = s.Documents.Put(t.Context(), k, []byte("{}"), store.DocumentOptions{For: time.Second})
	assert.ErrorIs(t, err, store.ErrIntent)
	before := time.Now()
	_, err = s.Documents.Put(t.Context(), instance.Key{Role: schema.Limits, Address: "b"}, []byte("{}"),
		store.DocumentOptions{For: time.Hour})
	require.NoError(t, err)
	ends, err := s.Reader.Ends(t.Context(), l.Document(instance.Key{Role: schema.Limits}))
	left := ends[instance.Key{Role: schema.Limits, Address: "b"}].Sub(before)
	assert.True(t, err == nil && len(ends) == 1 && left >= time.Minute && left <= 2*time.Hour, "%v, %v", ends, err)
	// Writing the same value without a time limit removes the limit.
	if revision, err := s.Documents.Put(t.Context(), instance.Key{Role: schema.Limits, Address: "b"}, []byte("{}"), store.DocumentOptions{}); err != nil || revision == 0 {
		t.Error(revision, err)
	}
	ends, err = s.Reader.Ends(t.Context(), l.Document(instance.Key{Role: schema.Limits}))
	assert.True(t, err == nil && len(ends) == 0, "%v, %v", ends, err)
}

// Reads of leases have a deadline, even if the caller's context has none.
func TestLeaseReads_HaveDeadline(t *testing.T) {
	t.Parallel()
	e, l := etcdtest.Start(t), members.Layout(t)
	leases := 0
	cli, err := etcd.Dial(etcd.Config{
		Endpoints: []string{e.Endpoint()},
		Intercept: func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
			if strings.HasSuffix(method, "/LeaseTimeToLive") {
				leases++
				_, ok := ctx.Deadline()
				assert.True(t, ok, "%s without a deadline", method)
			}
			return invoke(ctx, method, req, reply, cc, o...)
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = cli.Close() })
	s := store.New(cli, l, "ann")
	_, err = s.Documents.Put(t.Context(), instance.Key{Role: schema.Limits, Address: "b"}, []byte("{}"),
		store.DocumentOptions{For: time.Hour})
	require.NoError(t, err)
	_, err = s.Intents.Intend(t.Context(), instance.Key{Role: instance.Decode, Address: "10.0.0.1:1"}, instance.Drain,
		store.IntentOptions{For: time.Hour, Force: true})
	require.NoError(t, err)
	if ends, err := s.Reader.Ends(t.Context(), l.Document(instance.Key{Role: schema.Limits})); err != nil || len(ends) != 1 {
		t.Errorf("%v, %v", ends, err)
	}
	if ends, err := s.Reader.Ends(t.Context(), l.Overrides()); err != nil || len(ends) != 1 {
		t.Errorf("%v, %v", ends, err)
	}
	assert.Equal(t, 2, leases, "reads of leases, want 2")
}
