package connector

import (
	"cmp"
	"errors"
	"net"
	"strconv"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

// p2p is vLLM's OffloadingConnector with a tier of type p2p (vLLM's
// v1/kv_offload/tiering/p2p). Prefill keeps blocks under kv_request_id, and decode fetches
// them from prefill's side channel. Prefill's answer has nothing about them.
type p2p struct{ base }

// p2pLease is the default of unbound_store_timeout_s. Prefill refuses a later fetch, so
// decode never reads wrong blocks.
const p2pLease = 60 * time.Second

// p2pKept is the reference to the blocks that prefill keeps, which its answer does not name.
const p2pKept = `{}`

func (p2p) Name() string { return "p2p" }

// Lacks: decode learns the side channel of prefill only from the proxy.
func (p2p) Lacks(in *instance.Instance) error {
	switch {
	case in.Role == instance.Decode:
		return nil
	case len(in.Record.Ports[instance.PortP2P]) == 0:
		return errors.New("its record names no port of the P2P tier")
	}
	return tooManyRanks(in)
}

// Terms: prefill refuses a fetch after the end of the lease.
func (p2p) Terms(in *instance.Instance) Terms {
	return Terms{Lease: cmp.Or(lease(in), p2pLease), RefusalSpends: true, Renews: true, Blocks: in.Record.BlockSize}
}

func (p2p) Prefill(r *request.Request, p Pair) Leg {
	return Leg{
		Body:   prefillBody(r, p, `{"remote_decoder":{"kv_request_id":"`+p2pID(p)+`"}}`),
		Header: []Field{{headerRank, strconv.Itoa(p.PrefillRank)}},
	}
}

func (p2p) TransferParams(answer []byte) (TransferParams, error) {
	if _, err := jsonscan.TopLevel(answer, "choices"); err != nil {
		return TransferParams{}, err
	}
	return TransferParams{Params: []byte(p2pKept)}, nil
}

func (p2p) Decode(r *request.Request, p Pair, h TransferParams) Leg {
	if h.Empty() {
		return DecodeOnly(r, p)
	}
	host, port := sideChannel(p.Prefill, p.PrefillRank)
	return Leg{Body: decodeBody(r, p, `{"remote_prefiller":{"kv_request_id":"`+p2pID(p)+
		`","remote_host":`+toJSON(host)+`,"remote_port":`+strconv.Itoa(port)+`}}`)}
}

func p2pID(p Pair) string { return "kv-" + p.Key }

// sideChannel returns the address from which decode fetches the blocks of a rank of
// prefill: the port in the record plus the rank. An IPv6 address is in brackets, because
// the engine joins host and port as they are.
func sideChannel(in *instance.Instance, rank int) (host string, port int) {
	host, _, err := net.SplitHostPort(in.Address)
	ports := in.Record.Ports[instance.PortP2P]
	if err != nil || len(ports) == 0 { // Lacks keeps such an instance from being picked
		return "", 0
	}
	if ip := net.ParseIP(host); ip != nil && ip.To4() == nil {
		host = "[" + host + "]"
	}
	return host, ports[0] + rank
}
