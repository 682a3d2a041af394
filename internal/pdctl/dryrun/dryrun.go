// Package dryrun implements --dry-run: an interceptor for an etcd client that sends no writes and
// records them.
package dryrun

import (
	"context"
	"fmt"
	"strings"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
)

// Run intercepts the calls of an etcd client. It sends reads and the comparisons of transactions to
// etcd, and records writes instead of sending them. Commands get the same answers as without
// --dry-run, so they need no code for it.
type Run struct {
	On bool // if false, all calls are sent

	mu    sync.Mutex // guards the fields below
	would []Txn
	ttl   map[int64]int64 // of requested leases, in seconds, by id
}

// Txn is one transaction that was recorded instead of sent.
type Txn struct {
	Revision int64    `json:"revision"` // at which etcd compared
	If       []string `json:"if"`       // its comparisons, all of which held
	Writes   []Write  `json:"writes"`
}

// Write is the write of one key.
type Write struct {
	Op    string `json:"op"` // put or delete
	Key   string `json:"key"`
	Value string `json:"value,omitempty"`
	TTL   int64  `json:"ttl,omitempty"` // of the lease it would be attached to, in seconds
}

// Interceptor returns the interceptor for the client, nil if d is off.
func (d *Run) Interceptor() grpc.UnaryClientInterceptor {
	if !d.On {
		return nil
	}
	return d.intercept
}

// intercept handles every call of the client.
func (d *Run) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
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
	return fmt.Errorf("--dry-run: this would write in a way that cannot be shown (%s)", method)
}

// txn sends a transaction whose writes are replaced by reads, and records the writes.
func (d *Run) txn(req *pb.TxnRequest, out *pb.TxnResponse, ask func(*pb.TxnRequest, *pb.TxnResponse) error) error {
	readOnly := func(ops []*pb.RequestOp) (reads []*pb.RequestOp) {
		for _, op := range ops {
			read := &pb.RangeRequest{Key: op.GetRequestPut().GetKey(), CountOnly: true}
			switch {
			case op.GetRequestRange() != nil:
				read = op.GetRequestRange()
			case op.GetRequestDeleteRange() != nil:
				read.Key = op.GetRequestDeleteRange().Key // package store deletes only single keys
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
	d.mu.Lock()
	defer d.mu.Unlock()
	would := Txn{Revision: out.GetHeader().GetRevision(), If: []string{}}
	for i, op := range ops {
		found := out.Responses[i].GetResponseRange()
		switch {
		case op.GetRequestPut() != nil:
			put := op.GetRequestPut()
			would.Writes = append(would.Writes, Write{Op: "put", Key: instance.Printable(string(put.Key), 0), Value: output.EscapeValue(put.Value), TTL: d.ttl[put.Lease]})
			out.Responses[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{Header: out.Header}}}
		case op.GetRequestDeleteRange() != nil:
			if found.Count > 0 {
				would.Writes = append(would.Writes, Write{Op: "delete", Key: instance.Printable(string(op.GetRequestDeleteRange().Key), 0)})
			}
			out.Responses[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{
				Header: out.Header, Deleted: found.Count,
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
	d.would = append(d.would, would)
	return nil
}

// condition describes one comparison of etcd.Unchanged.
func condition(c *pb.Compare) string {
	key := instance.Printable(string(c.Key), 0)
	if c.Target == pb.Compare_CREATE {
		return key + " does not exist"
	}
	return fmt.Sprintf("%s has not changed since revision %d", key, c.GetModRevision())
}

// Planned returns the transactions that were recorded so far.
func (d *Run) Planned() []Txn {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Txn{}, d.would...)
}

// Text describes the recorded transactions.
func (d *Run) Text() string {
	var b strings.Builder
	would := d.Planned()
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
	return strings.TrimSuffix(b.String(), "\n")
}
