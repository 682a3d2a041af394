package answer

import (
	"math/bits"

	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

// call is the tool call that a prompt gets when one is required: a name token,
// an opening, a few words, a closing, and EOS.
type call struct {
	id    string
	name  string
	ids   []int
	parts []string // argument fragments, one per token but the first and last
}

func newCall(prompt []int, p *request.Request, choice int) call {
	g := model.NewGenerator(prompt, choice)
	x := model.Mix(g.Hash())
	c := call{name: p.ToolName}
	if c.name == "" {
		hi, _ := bits.Mul64(x, uint64(len(p.Tools)))
		c.name = p.Tools[hi].Name
	}
	c.id = callID(x)
	words := 3 + int(x%6)
	take := func() int {
		id, _ := g.Next()
		g.Push(id)
		c.ids = append(c.ids, id)
		return id
	}
	take()
	take()
	c.parts = append(c.parts, `{"text":"`)
	for range words {
		c.parts = append(c.parts, string(model.AppendWordJSON(nil, take())))
	}
	take()
	c.parts = append(c.parts, `"}`)
	c.ids = append(c.ids, model.EOS)
	return c
}

func callID(x uint64) string { return "chatcmpl-tool-" + model.Hex16(x) + model.Hex16(model.Mix(x)) }

// Calling reports whether a lane's answer is a tool call that the request requires.
func (ln *Lane) Calling() bool { return ln.call != nil }

// ToolCall is that call as far as it was said.
func (ln *Lane) ToolCall() (name, arguments string) { return ln.call.name, ln.call.upTo(ln.Seq.N) }
