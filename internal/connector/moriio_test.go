package connector_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Each mode of MoRI-IO is a dialect, so that instances in different modes are not paired.
func TestDialectOfARecord(t *testing.T) {
	t.Parallel()
	for rec, want := range map[[2]string]string{
		{"moriio", "WRITE"}: "moriio_write", {"MoRIIOConnector", "read"}: "moriio_read", {"moriio_read", ""}: "moriio_read",
		{"", "READ"}: "nixl", {"mooncake", "WRITE"}: "mooncake",
	} {
		d, err := connector.OfRecord(&instance.Record{Connector: rec[0], TransferMode: rec[1]}, "nixl")
		require.NoError(t, err, rec)
		assert.Equal(t, want, d.Name(), rec)
	}
	for _, mode := range []string{"", "push"} {
		if d, err := connector.OfRecord(&instance.Record{Connector: "moriio", TransferMode: mode}, "nixl"); err == nil {
			t.Errorf("mode %q is %s", mode, d.Name())
		}
	}
	_, err := connector.OfRecord(&instance.Record{Connector: "teleport"}, "nixl")
	assert.ErrorIs(t, err, connector.ErrUnknown, "teleport")
}

func TestZMQAddress(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"host:10.0.0.1,handshake:6301,notify:61005", "host:::1,handshake:1,notify:65535", "host:gpu-1.example,handshake:2,notify:3"} {
		z, err := connector.ParseZMQAddress(s)
		assert.True(t, err == nil && z.String() == s, "%q: %+v, %v", s, z, err)
	}
	for _, s := range []string{
		"", "10.0.0.1:6301", "host:,handshake:1,notify:2", "host:a,handshake:0,notify:2", "host:a,handshake:1,notify:65536",
		"host:a,handshake:1", "host:a,handshake:1,notify:2,x:3", "host:a b,handshake:1,notify:2", "host:a\r\n,handshake:1,notify:2",
		"host:a___decode_addr_b,handshake:1,notify:2", "handshake:1,host:a,notify:2", "host:a,handshake:+1,notify:2",
	} {
		z, err := connector.ParseZMQAddress(s)
		assert.ErrorIs(t, err, connector.ErrZMQAddress, "%q: %+v", s, z)
	}
}

func TestMoRIIO_UnsupportedInstances(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"moriio_read", "moriio_write"} {
		d := newDialect(t, name)
		in := pair().Decode
		for version, ok := range map[string]bool{"0.17.1": false, "0.18.0": true, "": true} {
			in.Record.Version = version
			assert.Equal(t, ok, (d.Lacks(in) == nil), "%s, %q", name, version)
		}
		in.Record.Version, in.Record.ZMQAddress = "", ""
		assert.ErrorIs(t, d.Lacks(in), connector.ErrZMQAddress, "%s without an address", name)
	}
}
