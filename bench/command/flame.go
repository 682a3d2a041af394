package command

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/pdmesh/pdmesh/bench/flame"
)

// flame draws a profile; the last repeat's picture stays. The stacks go beside
// the figures, for other tools.
func (f *runFlags) flame(workload string, data []byte) error {
	folded, err := flame.Parse(data)
	if err != nil {
		return err
	}
	name := filepath.Join(filepath.Dir(f.figures()), "flame-"+workload)
	if err := os.WriteFile(name+".folded", []byte(folded.Text()), 0o644); err != nil {
		return err
	}
	return publish(name+".svg", folded.SVG(fmt.Sprintf("Processor time of the proxy: %s", workload)))
}
