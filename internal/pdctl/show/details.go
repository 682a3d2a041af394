package show

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

// mostEvents bounds the history of an instance in the output of get.
const mostEvents = 10

// proxyView is the report of one proxy about an instance.
type proxyView struct {
	ID      string `json:"id"`
	Address string `json:"address,omitempty"`
	Applied int64  `json:"applied"`
	// View is why the proxy does not use the instance, such as unverified or ejected.
	View   instance.View `json:"view,omitempty"`
	Reason string        `json:"reason,omitempty"`
	// Unverified is why the proxy has not verified the instance.
	Unverified string `json:"unverified,omitempty"`
	InFlight   *int64 `json:"in_flight,omitempty"`  // nil if the proxy publishes no load digest
	DigestAge  string `json:"digest_age,omitempty"` // by the clocks of the proxy and of this machine
}

// details returns the reports of proxies about an instance and the newest events of its history.
// If this etcd user may not read a part, a note replaces it.
func details(ctx context.Context, s *session.Session, conn *session.Conn, k instance.Key) (views []proxyView, events []event, unread notes) {
	views, events = []proxyView{}, []event{}
	proxies, err := conn.Store.Reader.Proxies(ctx)
	unread.add("proxies", err)
	loads, err := conn.Store.Reader.Loads(ctx)
	unread.add("load digests", err)
	for _, p := range proxies {
		v := proxyView{ID: p.ID, Address: p.Address, Applied: p.Applied}
		v.View, v.Reason = p.Opinion(k)
		if v.View == instance.Unverified {
			v.Unverified = v.Reason
		}
		for _, l := range loads {
			if l.ID == p.ID && l.Ignored == "" {
				if c, known := l.Load[k.String()]; known || l.LeftOut == 0 {
					v.InFlight = &c.InFlight
				}
				if l.At != nil {
					v.DigestAge = max(0, time.Since(*l.At)).Round(100 * time.Millisecond).String()
				}
			}
		}
		views = append(views, v)
	}
	past, _, err := pastEvents(ctx, s, conn, &k, time.Time{}, mostEvents)
	unread.add("history", err)
	return views, append(events, past...), unread
}

// notes has a line for each part that this etcd user could not read, with the reason.
type notes []string

// add adds a note about an error, if there is one.
func (n *notes) add(what string, err error) {
	if err != nil {
		*n = append(*n, what+": "+instance.Printable(err.Error(), 200))
	}
}

func (n notes) print(s *session.Session) {
	for _, note := range n {
		s.Out.Printf("note: %s\n", note)
	}
}

func printDetails(s *session.Session, views []proxyView, events []event, unread notes) {
	if len(views) > 0 {
		s.Out.Printf("\n")
		t := output.NewTable("PROXY", "APPLIED", "IN FLIGHT", "DIGEST AGE", "VIEW", "REASON")
		for _, v := range views {
			inFlight := "-"
			if v.InFlight != nil {
				inFlight = fmt.Sprint(*v.InFlight)
			}
			t.AppendRow([]any{cmp.Or(v.Address, v.ID), v.Applied, inFlight, cmp.Or(v.DigestAge, "-"), cmp.Or(string(v.View), "-"), cmp.Or(v.Reason, "-")})
		}
		s.Out.Printf("%s\n", t.Render())
	}
	if len(events) > 0 {
		s.Out.Printf("\n")
		printEvents(s, events)
	}
	unread.print(s)
}
