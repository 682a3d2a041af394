package report

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Against writes what a request costs with each target, in processor time of the target,
// beside what it costs with one of them. Both were up side by side and took turns; the
// difference is the median of those of the repeats, with the least and the most.
func (r *Run) Against(out io.Writer, base string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "workload\ttarget\tCPU µs/request\tagainst %s\tfrom\tto\n", base)
	for _, workload := range r.Config.Workloads {
		of := map[string]map[int]float64{} // by target and repeat
		for i := range r.Cells {
			c := &r.Cells[i]
			if c.Workload != workload || c.Skipped != "" || c.CPU <= 0 || c.Right == 0 {
				continue
			}
			if of[c.Target] == nil {
				of[c.Target] = map[int]float64{}
			}
			of[c.Target][c.Repeat] = c.CPUPerRequest()
		}
		for _, target := range r.Config.Targets {
			var own, more []float64
			for repeat, cpu := range of[target] {
				own = append(own, cpu)
				if b := of[base][repeat]; b > 0 {
					more = append(more, (cpu/b-1)*100)
				}
			}
			if len(more) == 0 {
				continue
			}
			fmt.Fprintf(w, "%s\t%s\t%.1f\t%+.1f %%\t%+.1f\t%+.1f\n", workload, target, median(own), median(more), slices.Min(more), slices.Max(more))
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}
