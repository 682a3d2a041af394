package suite

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/bench/report"
)

// Workload is a kind of load with a name.
type Workload struct {
	Name  string
	About string
	Shape answer.Shape
	Conns int
	ITL   time.Duration
	Ramp  time.Duration
	// Hold keeps every stream open for the whole window.
	Hold bool
	// Vanish lets all clients leave at the end of the window.
	Vanish bool
	// Churn registers many instances and changes the membership all the time;
	// Instances and Changes say how many and how often.
	Instances int
	Changes   float64
	// Membership is for workloads that concern the number of instances: they are
	// for our proxy, and for the floor, which is given as many that never change.
	Membership bool
	// Own is for workloads of APIs that only our proxy is measured with, beside what
	// needs no proxy.
	Own bool
	// Turns, if there are any, is how often it is run in each repeat, in turns with
	// its neighbours that have turns too.
	Turns int
	// Beside is for workloads that begin and end in no time: all targets are up side
	// by side and take turns.
	Beside bool
}

// endless is more tokens than any window lets pass.
const endless = 999_999

// The workload that Churn is compared with, run right before it. The difference of
// the two is a twentieth of either, and machines are busier now than in ten
// seconds: hence turns.
const (
	churn = "churn"
	quiet = "quiet"
	turns = 3
)

// Workloads lists all.
func Workloads() []Workload {
	small := answer.Shape{Prompt: 128, Tokens: 1}
	stream := func(prompt, tokens int) answer.Shape {
		return answer.Shape{Prompt: prompt, Tokens: tokens, Stream: true}
	}
	over := func(api answer.API, s answer.Shape) answer.Shape {
		s.API = api
		return s
	}
	const itl = 10 * time.Millisecond
	return []Workload{
		{Name: "small", About: "128 B prompt, 1 token, not streamed, 32 connections", Shape: small, Conns: 32, Beside: true},
		{Name: "stream", About: "2 KiB prompt, 64 tokens streamed without pause, 32 connections", Shape: stream(2<<10, 64), Conns: 32, Beside: true},
		{Name: "prompt64k", About: "64 KiB prompt, 1 token, 16 connections", Shape: answer.Shape{Prompt: 64 << 10, Tokens: 1}, Conns: 16, Beside: true},
		{Name: "prompt1m", About: "1 MiB prompt, 1 token, 8 connections", Shape: answer.Shape{Prompt: 1 << 20, Tokens: 1}, Conns: 8, Beside: true},
		{Name: "open200", About: "200 streams of 128 tokens at 10 ms, a new one as one ends", Shape: stream(512, report.StreamTokens), Conns: 200, ITL: itl, Ramp: 2 * time.Second},
		{Name: "chat2k", About: "2 KiB prompt, 1 token, 32 connections: what the next two are compared with", Shape: answer.Shape{Prompt: 2 << 10, Tokens: 1}, Conns: 32, Own: true},
		{Name: "responses2k", About: "the same over /v1/responses", Shape: answer.Shape{Prompt: 2 << 10, Tokens: 1, API: answer.Responses}, Conns: 32, Own: true},
		{Name: "messages2k", About: "the same over /v1/messages", Shape: answer.Shape{Prompt: 2 << 10, Tokens: 1, API: answer.Messages}, Conns: 32, Own: true},
		{Name: "responses200", About: "as open200, over /v1/responses", Shape: over(answer.Responses, stream(512, report.StreamTokens)), Conns: 200, ITL: itl, Ramp: 2 * time.Second, Own: true},
		{Name: "messages200", About: "as open200, over /v1/messages", Shape: over(answer.Messages, stream(512, report.StreamTokens)), Conns: 200, ITL: itl, Ramp: 2 * time.Second, Own: true},
		{Name: "open1000", About: "1,000 streams of 128 tokens at 10 ms, a new one as one ends", Shape: stream(512, report.StreamTokens), Conns: 1000, ITL: itl, Ramp: 2 * time.Second},
		{Name: "open5000", About: "5,000 streams that stay open at 10 ms (more than two cores can carry)", Shape: stream(512, endless), Conns: 5000, ITL: itl, Ramp: 4 * time.Second, Hold: true},
		{Name: "idle1000", About: "1,000 slow streams, a token every 2 s", Shape: stream(512, endless), Conns: 1000, ITL: 2 * time.Second, Ramp: 2 * time.Second, Hold: true},
		{Name: "idle10000", About: "10,000 slow streams, a token every 2 s", Shape: stream(512, endless), Conns: 10_000, ITL: 2 * time.Second, Ramp: 5 * time.Second, Hold: true},
		{Name: "vanish5000", About: "5,000 streams at 500 ms whose clients all leave at once", Shape: stream(512, endless), Conns: 5000, ITL: 500 * time.Millisecond, Ramp: 4 * time.Second, Hold: true, Vanish: true},
		{Name: quiet, About: "as small, with 4 instances and no changes", Shape: small, Conns: 32, Membership: true, Turns: turns},
		{Name: churn, About: "as quiet, with 1,000 instances registered and 50 changes of the membership a second", Shape: small, Conns: 32, Instances: 1000, Changes: 50, Membership: true, Turns: turns},
	}
}

// ErrWorkload is wrapped by complaints about a list of workloads.
var ErrWorkload = errors.New("no such workload")

// Choose finds workloads by name; no name means all
// of Workloads. churn brings quiet, which
// it is compared with.
func Choose(names []string) ([]Workload, error) {
	if len(names) == 0 {
		return Workloads(), nil
	}
	all := Named()
	wanted := make(map[string]bool)
	for _, n := range names {
		wanted[n] = true
		if n == churn {
			wanted[quiet] = true
		}
	}
	var out []Workload
	for _, w := range all {
		if wanted[w.Name] {
			out = append(out, w)
			delete(wanted, w.Name)
		}
	}
	for n := range wanted {
		var have []string
		for _, w := range all {
			have = append(have, w.Name)
		}
		return nil, fmt.Errorf("%w as %q: there are %s", ErrWorkload, n, strings.Join(have, ", "))
	}
	return out, nil
}
