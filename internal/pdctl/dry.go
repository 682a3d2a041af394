package pdctl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// dryRun stands between the client and etcd and lets nothing through that writes. What
// reads goes to etcd; a transaction is compared there as it stands, and its writes are
// kept. Who works through it finds what it would find, and cannot tell the difference.
type dryRun struct {
	mu    sync.Mutex // guards what follows
	would []wouldDo
	ttl   map[int64]int64 // of leases that were asked for
}

// wouldDo is one transaction that was not carried out.
type wouldDo struct {
	Revision int64       `json:"revision"` // at which it was compared
	If       []string    `json:"if"`       // what it rests upon, all of which was so
	Writes   []wouldKeep `json:"writes"`
}

// wouldKeep is one key.
type wouldKeep struct {
	Op    string `json:"op"` // put or delete
	Key   string `json:"key"`
	Value string `json:"value,omitempty"`
	TTL   int64  `json:"ttl,omitempty"` // seconds, of the lease that it would hang on
}

// writes gives a command that writes the flag.
func (a *app) writes(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&a.dry, "dry-run", false, "print what would be written, compared with etcd as it is, and write nothing")
	return cmd
}

// errDry is the end of what cannot be looked at without doing it.
var errDry = errors.New("--dry-run: this would write in a way that cannot be shown")

// intercept takes every call of the client.
func (d *dryRun) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	switch req := req.(type) {
	case *pb.TxnRequest:
		return d.txn(req, reply.(*pb.TxnResponse), func(in *pb.TxnRequest, out *pb.TxnResponse) error { //nolint:forcetypeassert // etcd's own pairs
			return invoke(ctx, method, in, out, cc, opts...)
		})
	case *pb.LeaseGrantRequest:
		out := reply.(*pb.LeaseGrantResponse) //nolint:forcetypeassert // etcd's own pairs
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.ttl == nil {
			d.ttl = map[int64]int64{}
		}
		out.Header, out.ID, out.TTL = &pb.ResponseHeader{}, req.ID, req.TTL
		if out.ID == 0 {
			out.ID = int64(len(d.ttl) + 1)
		}
		d.ttl[out.ID] = req.TTL
		return nil
	case *pb.LeaseRevokeRequest:
		reply.(*pb.LeaseRevokeResponse).Header = &pb.ResponseHeader{} //nolint:forcetypeassert // etcd's own pairs
		return nil
	case *pb.RangeRequest, *pb.StatusRequest, *pb.LeaseTimeToLiveRequest, *pb.AuthenticateRequest, *pb.MemberListRequest, *pb.LeaseLeasesRequest:
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	return fmt.Errorf("%w (%s)", errDry, method)
}

// txn has etcd compare and read what the transaction compares and reads.
func (d *dryRun) txn(req *pb.TxnRequest, out *pb.TxnResponse, ask func(*pb.TxnRequest, *pb.TxnResponse) error) error {
	readOnly := func(ops []*pb.RequestOp) (reads []*pb.RequestOp) {
		for _, op := range ops {
			read := &pb.RangeRequest{Key: op.GetRequestPut().GetKey(), CountOnly: true}
			switch {
			case op.GetRequestRange() != nil:
				read = op.GetRequestRange()
			case op.GetRequestDeleteRange() != nil:
				of := op.GetRequestDeleteRange()
				read = &pb.RangeRequest{Key: of.Key, RangeEnd: of.RangeEnd, CountOnly: !of.PrevKv}
			}
			reads = append(reads, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: read}})
		}
		return reads
	}
	if err := ask(&pb.TxnRequest{Compare: req.Compare, Success: readOnly(req.Success), Failure: readOnly(req.Failure)}, out); err != nil {
		return err
	}
	ops := req.Failure
	if out.Succeeded {
		ops = req.Success
	}
	would := wouldDo{Revision: out.GetHeader().GetRevision(), If: []string{}}
	for i, op := range ops {
		found := out.Responses[i].GetResponseRange()
		switch {
		case op.GetRequestPut() != nil:
			put := op.GetRequestPut()
			would.Writes = append(would.Writes, wouldKeep{Op: "put", Key: instance.Printable(string(put.Key), 0), Value: escapeValue(put.Value), TTL: d.ttlOf(put.Lease)})
			out.Responses[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{Header: out.Header}}}
		case op.GetRequestDeleteRange() != nil:
			if found.Count > 0 {
				would.Writes = append(would.Writes, wouldKeep{Op: "delete", Key: rangeName(op.GetRequestDeleteRange())})
			}
			out.Responses[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{
				Header: out.Header, Deleted: found.Count, PrevKvs: found.Kvs,
			}}}
		}
	}
	if len(would.Writes) == 0 {
		return nil
	}
	if out.Succeeded {
		for _, c := range req.Compare {
			would.If = append(would.If, condition(c))
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.would = append(d.would, would)
	return nil
}

func (d *dryRun) ttlOf(lease int64) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ttl[lease]
}

func rangeName(of *pb.DeleteRangeRequest) string {
	name := instance.Printable(string(of.Key), 0)
	if len(of.RangeEnd) > 0 {
		name += " up to " + instance.Printable(string(of.RangeEnd), 0)
	}
	return name
}

// condition is one comparison in words.
func condition(c *pb.Compare) string {
	key := instance.Printable(string(c.Key), 0)
	switch c.Target {
	case pb.Compare_CREATE:
		if c.GetCreateRevision() == 0 && c.Result == pb.Compare_EQUAL {
			return key + " is not there"
		}
		return fmt.Sprintf("%s: created at revision %s %d", key, sign(c), c.GetCreateRevision())
	case pb.Compare_MOD:
		if c.Result == pb.Compare_EQUAL {
			return fmt.Sprintf("%s is as at revision %d", key, c.GetModRevision())
		}
		return fmt.Sprintf("%s: revision %s %d", key, sign(c), c.GetModRevision())
	case pb.Compare_LEASE:
		return fmt.Sprintf("%s: lease %s %x", key, sign(c), c.GetLease())
	case pb.Compare_VALUE:
		return fmt.Sprintf("%s: value %s %s", key, sign(c), escapeValue(c.GetValue()))
	default:
		return fmt.Sprintf("%s: version %s %d", key, sign(c), c.GetVersion())
	}
}

func sign(c *pb.Compare) string {
	return map[pb.Compare_CompareResult]string{pb.Compare_EQUAL: "=", pb.Compare_GREATER: ">", pb.Compare_LESS: "<", pb.Compare_NOT_EQUAL: "!="}[c.Result]
}

// planned gives what was not written so far.
func (d *dryRun) planned() []wouldDo {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]wouldDo{}, d.would...)
}

// printDry says what would have been written.
func (a *app) printDry() error {
	if !a.dry || a.structured() {
		return nil
	}
	var b strings.Builder
	would := a.rehearsal.planned()
	if len(would) == 0 {
		b.WriteString("Dry run: nothing would be written.\n")
	} else {
		b.WriteString("Dry run: nothing is written. Each of these would be one transaction:\n")
	}
	for i := range would {
		fmt.Fprintf(&b, "\nat revision %d\n", would[i].Revision)
		for _, c := range would[i].If {
			fmt.Fprintf(&b, "  if      %s\n", c)
		}
		for _, w := range would[i].Writes {
			line := fmt.Sprintf("  %-6s  %s %s", w.Op, w.Key, w.Value)
			if w.TTL > 0 {
				line += fmt.Sprintf(" (lease of %d s)", w.TTL)
			}
			b.WriteString(strings.TrimRight(line, " ") + "\n")
		}
	}
	return a.println(strings.TrimSuffix(b.String(), "\n"))
}
