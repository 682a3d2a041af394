package real_test

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/pdmesh/pdmesh/bench/ground"
	"github.com/pdmesh/pdmesh/bench/machine"
)

// chatFigures has the figures of simultaneous chats with real engines: the part of the tokens that the
// fleet had computed and that the engines found in their caches. TestChats measures them.
type chatFigures struct {
	Version string           `json:"version"`
	Machine machine.Facts    `json:"machine"`
	Engine  string           `json:"engine"`
	Prefill int              `json:"prefill"`
	Decode  int              `json:"decode"`
	Chats   int              `json:"chats"`
	Turns   int              `json:"turns"`
	Block   int              `json:"block"` // tokens
	Rows    []chatFiguresRow `json:"rows"`
}

// chatFiguresRow has the figures of a policy, in tokens of all turns except the first one.
type chatFiguresRow struct {
	Policy   string `json:"policy"`
	Asked    int    `json:"asked"`    // by the prompts
	Possible int    `json:"possible"` // of these: in whole blocks that an engine had computed
	Expected int    `json:"expected"` // by the policy to be in caches
	Found    int    `json:"found"`    // of the possible ones
	Moved    int    `json:"moved"`    // turns with another engine than the turn before
}

// Ratio returns Found divided by Possible.
func (r *chatFiguresRow) Ratio() float64 { return float64(r.Found) / float64(max(r.Possible, 1)) }

// Table returns the rows as Markdown.
func (c *chatFigures) Table() string {
	var b strings.Builder
	b.WriteString("| policy of prefill | tokens asked | in whole blocks computed before | expected by the policy | found by vLLM | of what was possible % | turns that changed the engine |\n")
	b.WriteString("|---|---|---|---|---|---|---|\n")
	for i := range c.Rows {
		r := &c.Rows[i]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %.1f | %d |\n", r.Policy, r.Asked, r.Possible, r.Expected, r.Found, 100*r.Ratio(), r.Moved)
	}
	return b.String()
}

// WriteDoc writes the figures into a document.
func (c *chatFigures) WriteDoc(file string) error {
	text := fmt.Sprintf("\n%s, %d cores, %s. %s: %d prefill and %d decode engines, blocks of %d tokens. %d chats of %d turns at the same time, which share a system prompt.\n\n%s\n",
		c.Machine.CPU, c.Machine.Cores, c.Version, c.Engine, c.Prefill, c.Decode, c.Block, c.Chats, c.Turns, c.Table())
	return ground.ReplacePart(file, "fleet-real", text)
}

// Save writes the figures into a document, and to a file in the folder of its name.
func (c *chatFigures) Save(doc string) error {
	return ground.Save(c, filepath.Join(strings.TrimSuffix(doc, ".md"), "chats.json"), doc)
}
