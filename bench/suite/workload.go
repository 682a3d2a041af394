package suite

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/bench/answer"
)

// Workload is a load with a name.
type Workload struct {
	Name      string
	Shape     answer.Shape
	Conns     int
	ITL       time.Duration // between the tokens of a stream; 0 if responses are not streamed
	Hold      bool          // streams outlast the measurement
	Instances int           // of both roles; 0 means 4
	Extra     bool          // run only if it is named
}

// ramp is the time over which the clients of streams start.
const ramp = 2 * time.Second

// Workloads returns all workloads.
func Workloads() []Workload {
	whole := func(prompt int) answer.Shape { return answer.Shape{Prompt: prompt, Tokens: 1} }
	stream := func(tokens int) answer.Shape { return answer.Shape{Prompt: 512, Tokens: tokens, Stream: true} }
	const itl, endless = 10 * time.Millisecond, 999_999
	return []Workload{
		{Name: "small", Shape: whole(128), Conns: 32},
		{Name: "prompt2k", Shape: whole(2 << 10), Conns: 32},
		{Name: "prompt64k", Shape: whole(64 << 10), Conns: 16},
		{Name: "open200", Shape: stream(128), Conns: 200, ITL: itl},
		{Name: "open1000", Shape: stream(128), Conns: 1000, ITL: itl},
		{Name: "idle1000", Shape: stream(endless), Conns: 1000, ITL: 2 * time.Second, Hold: true},
		// All prompts begin differently, so a policy that remembers prompts stores each of them.
		{Name: "pick1000", Shape: whole(128), Conns: 32, Instances: 1000, Extra: true},
	}
}

// ErrUnknown is returned for a name that is not one of Workloads.
var ErrUnknown = errors.New("unknown workload")

// Choose returns the workloads with these names, in the order of Workloads; all but the
// extra ones without names.
func Choose(names []string) (out []Workload, err error) {
	wanted := make(map[string]bool)
	for _, n := range names {
		wanted[n] = true
	}
	var known []string
	for _, w := range Workloads() {
		if known = append(known, w.Name); wanted[w.Name] || len(names) == 0 && !w.Extra {
			out = append(out, w)
		}
		delete(wanted, w.Name)
	}
	for n := range wanted {
		return nil, fmt.Errorf("%w %q: must be one of %s", ErrUnknown, n, strings.Join(known, ", "))
	}
	return out, nil
}
