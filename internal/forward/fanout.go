package forward

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/splice"
)

const (
	// fanOutTimeout bounds the request to each instance, which may load an adapter from
	// a slow disk.
	fanOutTimeout = 5 * time.Minute
	// maxFanOut bounds the requests in flight, maxFanOutAnswer the answer of each, in bytes.
	maxFanOut       = 16
	maxFanOutAnswer = 1 << 20
)

// FanOut serves an endpoint whose requests go to all usable instances, once to each address. If all
// succeed, the client gets the first answer, otherwise an error that names the failed instances. The
// client's key is the admin key; engines do not get it. After a request that loads or unloads a LoRA
// adapter, the proxy reads the lists of models again before it answers.
func (h *Handler) FanOut(endpoint string) HandlerFunc {
	return h.serve(endpoint, openai.Other, (*call).fanOut)
}

// fanOutResult is the result of one instance.
type fanOutResult struct {
	answer  leg.Answer
	failure string // "" if it succeeded
}

func (c *call) fanOut() {
	var body splice.Body
	if c.r.ContentLength != 0 {
		if !c.readJSON() {
			return
		}
		body = splice.Of(c.flow.Body.Bytes())
	}
	c.origin.Header = c.r.Header.Clone()
	c.origin.Header.Del("Authorization")
	list := c.instancesToAsk(c.h.opts.Picker.Members())
	if len(list) == 0 {
		c.answer.Refuse(leg.Unavailable(instance.Decode, ""))
		return
	}
	seen := map[string]bool{}
	engines := slices.DeleteFunc(slices.Clone(list), func(in *instance.Instance) bool { // an engine may be in both roles
		twice := seen[in.Address]
		seen[in.Address] = true
		return twice
	})
	all := make([]fanOutResult, len(engines))
	var asking errgroup.Group
	asking.SetLimit(maxFanOut)
	for i, in := range engines {
		asking.Go(func() error {
			all[i] = c.fanOutTo(in, body)
			return nil
		})
	}
	_ = asking.Wait()
	if strings.HasSuffix(c.endpoint, "_lora_adapter") {
		// Also after a failure or if the client has left: some engines may have changed.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.r.Context()), probeTimeout)
		c.h.opts.Models.Refresh(ctx, list)
		cancel()
	}
	var failed []string
	for i, t := range all {
		if t.failure != "" {
			failed = append(failed, fmt.Sprintf("%s: %s", engines[i].Key, t.failure))
		}
	}
	switch {
	case c.r.Context().Err() != nil:
		c.answer.ClientGone()
	case len(failed) == 0:
		c.answer.SendWhole(all[0].answer)
	default:
		c.answer.Refuse(&openai.Error{Status: http.StatusBadGateway, Type: openai.TypeBadGateway, Message: fmt.Sprintf(
			"%d of %d instances failed: %s", len(failed), len(engines), strings.Join(failed, "; "))})
	}
}

// fanOutTo sends the request to one instance. It uses a new connection: if a request fails on a stale one,
// it is sent again, although the engine may have received it.
func (c *call) fanOutTo(in *instance.Instance, body splice.Body) fanOutResult {
	c.h.legs.Upstream.Forget(in.Address)
	l, resp, err := c.origin.Ask(in, fanOutTimeout, http.MethodPost, c.target(), c.origin.NewHeader(leg.EngineID(c.origin.ID)), body)
	defer l.End()
	if err != nil {
		return fanOutResult{failure: err.Error()}
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := relay.ReadAll(resp, maxFanOutAnswer)
	switch {
	case err != nil:
		return fanOutResult{failure: err.Error()}
	case resp.Status < 200 || resp.Status > 299:
		return fanOutResult{failure: fmt.Sprintf("%d %s", resp.Status, instance.Printable(string(text), 200))}
	}
	return fanOutResult{answer: leg.Answer{Status: resp.Status, Header: resp.Header, Body: text}}
}
