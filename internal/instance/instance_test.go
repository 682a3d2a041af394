package instance_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
)

func TestParseAddress(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ in, want, says string }{
		{in: "10.0.0.7:8100", want: "10.0.0.7:8100"},
		{in: "localhost:8100", want: "127.0.0.1:8100"},
		{in: "LocalHost:8100", want: "127.0.0.1:8100"},
		{in: "127.0.0.1:08100", want: "127.0.0.1:8100"},
		{in: "[::1]:80", want: "[::1]:80"},
		{in: "[2001:DB8:0:0::7]:80", want: "[2001:db8::7]:80"},
		{in: "[::ffff:10.0.0.7]:80", want: "10.0.0.7:80"},
		{in: "Node-1.Example.:80", want: "node-1.example:80"},
		{in: "node_1:65535", want: "node_1:65535"},
		{in: "", says: "empty"},
		{in: "host", says: "host:port"},
		{in: ":80", says: "host is missing"},
		{in: "host:", says: "1 to 65535"},
		{in: "host:0", says: "1 to 65535"},
		{in: "host:65536", says: "1 to 65535"},
		{in: "host:+80", says: "1 to 65535"},
		{in: "host:http", says: "1 to 65535"},
		{in: "::1:80", says: "[address]:port"},
		{in: "[::1]", says: "host:port"},
		{in: "0.0.0.0:80", says: "wildcard"},
		{in: "[::]:80", says: "wildcard"},
		{in: "[::ffff:0.0.0.0]:80", says: "wildcard"},
		{in: "[fe80::1%eth0]:80", says: "zone"},
		{in: "224.0.0.1:80", says: "multicast"},
		{in: "255.255.255.255:80", says: "multicast or broadcast"},
		{in: "http://host:80", says: "without a scheme"},
		{in: "user@host:80", says: "letters, digits"},
		{in: "ho st:80", says: "letters, digits"},
		{in: "-host:80", says: "letters, digits"},
		{in: "a..b:80", says: "letters, digits"},
		{in: "127.1:80", says: "IPv4"},
		{in: "2130706433:80", says: "IPv4"},
		{in: "a.0x7f:80", says: "IPv4"},
		{in: "host/path:80", says: "letters, digits"},
		{in: "h\x1b[2J:80", says: `\u001b`},
		{in: strings.Repeat("a", 400) + ":80", says: "longer than"},
	} {
		t.Run(tc.in, func(t *testing.T) {
			t.Parallel()
			got, err := instance.ParseAddress(tc.in)
			require.Equal(t, tc.want, got, "ParseAddress(%q): %v", tc.in, err)
			require.Equal(t, tc.says == "", err == nil, "ParseAddress(%q): %v", tc.in, err)
			if err != nil && (!errors.Is(err, instance.ErrAddress) || !strings.Contains(err.Error(), tc.says)) {
				t.Fatalf("error %v, want ErrAddress with %q", err, tc.says)
			}
			if err == nil {
				if again, err := instance.ParseAddress(got); again != got || err != nil {
					t.Fatalf("%q is not canonical: %q, %v", got, again, err)
				}
			}
		})
	}
}

func TestPrintable(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain ü 日本": "plain ü 日本", "a\nb\tc\r": `a\nb\tc\r`, "\x1b[2J": `\u001b[2J`, "\xff\xfe": `\xff\xfe`,
		"\u202eevil": `\u202eevil`, "a\u200bb": `a\u200bb`, "\u0085": `\u0085`, "": "",
	} {
		assert.Equal(t, want, instance.Printable(in, 0), "Printable(%q)", in)
	}
	assert.Equal(t, "xxxxxxxxxx...", instance.Printable(strings.Repeat("x", 50), 10), "cut")
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	in := func(role instance.Role, address string, view instance.View) *instance.Instance {
		return &instance.Instance{
			Key: instance.Key{Role: role, Address: address}, View: view, Verified: true,
			Record: instance.Record{State: instance.Ready},
		}
	}
	s := instance.NewSnapshot(7, []*instance.Instance{
		in(instance.Decode, "b:1", ""), in(instance.Decode, "a:1", instance.Pending), in(instance.Prefill, "c:1", ""), in(instance.Decode, "a:1", instance.Orphan),
	})
	var order []string
	for _, i := range s.All() {
		order = append(order, i.Key.String()+" "+string(i.View))
	}
	assert.Equal(t, "prefill/c:1 , decode/a:1 orphan, decode/a:1 pending, decode/b:1 ", strings.Join(order, ", "))
	assert.Equal(t, 2, len(s.Usable(instance.Decode)), "usable, want the orphan and b:1")
	i, ok := s.Lookup(instance.Key{Role: instance.Decode, Address: "a:1"})
	assert.True(t, ok && i.View == instance.Orphan, "Lookup returned %+v: a pending add must not hide a member", i)
	select {
	case <-s.Changed():
		t.Error("changed before it was superseded")
	default:
	}
	s.Supersede()
	s.Supersede()
	<-s.Changed()
}

func TestIncarnation(t *testing.T) {
	t.Parallel()
	a := &instance.Instance{CreateRevision: 5}
	b := &instance.Instance{CreateRevision: 5, Record: instance.Record{ID: "x"}}
	assert.Equal(t, "rev-5", a.Incarnation())
	assert.Equal(t, "x", b.Incarnation())
}

func TestWeight(t *testing.T) {
	t.Parallel()
	in := &instance.Instance{Verified: true, Record: instance.Record{State: instance.Ready}}
	assert.Equal(t, instance.DefaultWeight, in.Weight(), "without one it")
	for w, usable := range map[int]bool{0: false, 1: true, 300: true} {
		in.Record.Weight = &w
		assert.Equal(t, w, in.Weight())
		assert.Equal(t, usable, in.Usable())
	}
}

func TestLocalAddress(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{"0.0.0.0": "127.0.0.1:1", "::": "[::1]:1", "10.0.0.1": "10.0.0.1:1", "": "127.0.0.1:1", "h": "h:1"} {
		assert.Equal(t, want, instance.LocalAddress(host, 1), host)
	}
}
