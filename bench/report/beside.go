package report

import (
	"fmt"
	"strings"
)

// shortWorkloads are those whose CPU per request is next to other targets'.
var shortWorkloads = []struct{ name, text string }{ //nolint:gochecknoglobals // a table
	{"small", "128 B, 1 token"},
	{"stream", "64-token stream"},
	{"prompt64k", "64 KiB prompt"},
	{"prompt1m", "1 MiB prompt"},
}

// besideTarget sets the CPU per request beside another target's in the same repeat:
// processors and kernels differ, and what one of them takes says how fast this one is.
func (r *Run) besideTarget(b *strings.Builder, target, intro string) {
	var rows strings.Builder
	for _, w := range shortWorkloads {
		ours, others := r.pairs(w.name, target, cpuMicros)
		if len(ours) == 0 {
			continue
		}
		above, times := each(ours, others, difference), each(ours, others, quotient)
		fmt.Fprintf(&rows, "| %s | %s µs | %s µs | %s µs | %s | %s | %s |\n", w.text, number(median(others)),
			number(median(ours)), number(median(above)), spread(above), number(median(times)), spread(times))
	}
	if rows.Len() == 0 {
		return
	}
	fmt.Fprintf(b, "\n#### Beside %[1]s\n\n%[2]s\n\n| CPU per request | %[1]s | pdmesh | difference | spread | pdmesh / %[1]s | spread |\n|---|---|---|---|---|---|---|\n%[3]s",
		target, intro, rows.String())
}

// beside sets our proxy beside the other targets.
func (r *Run) beside(b *strings.Builder) {
	r.besideTarget(b, meshStd, "The same proxy with the standard library's HTTP client for engines (`--upstream std`): the difference is the gain of our own client.")
	r.besideTarget(b, router, "vLLM's own router. Like our proxy, it sends each request to two engines (two hops).")
	r.besideTarget(b, nginx, "A plain reverse proxy with one hop; ours makes two.")
	r.besideTarget(b, atFloor, "A process that makes only the system calls of two hops. It shows what these calls take on this machine.")
	r.floorRatio(b)
	r.floorLoss(b)
}

// each combines two figures of the same repeats.
func each(a, b []float64, f func(a, b float64) float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = f(a[i], b[i])
	}
	return out
}

func quotient(a, b float64) float64   { return a / b }
func difference(a, b float64) float64 { return a - b }

// floorRatio reports how much of the two-hop limit the floor reaches, since that limit
// depends on how quick the harness is on this machine.
func (r *Run) floorRatio(b *strings.Builder) {
	var rows strings.Builder
	for _, w := range shortWorkloads {
		var limits, floors, ours []float64
		for repeat := range r.Config.Repeats {
			floor, ok := r.Ratio(w.name, atFloor, repeat)
			our, also := r.Ratio(w.name, mesh, repeat)
			if !ok || !also || floor == 0 {
				continue
			}
			limits = append(limits, 1e6/r.cell(w.name, twoHop, repeat).Throughput())
			floors, ours = append(floors, floor), append(ours, our)
		}
		if len(ours) == 0 {
			continue
		}
		times := each(ours, floors, quotient)
		fmt.Fprintf(&rows, "| %s | %s µs | %s | %s | %s | %s |\n", w.text, number(median(limits)), number(median(floors)),
			number(median(ours)), number(median(times)), spread(times))
	}
	if rows.Len() > 0 {
		b.WriteString("\nThe next table shows how much of the two-hop limit the floor and our proxy reach. The limit is the throughput of engines and generator for both hops, on the core that they share. With small requests the target's core is the bottleneck, so a target that makes the same calls as the floor reaches no more than the floor. With streams the harness is the bottleneck, so it matters more how much work a target makes for the harness.\n\n")
		b.WriteString("| throughput / two-hop limit | the limit's time per request | floor | measured | measured / floor | spread |\n|---|---|---|---|---|---|\n")
		b.WriteString(rows.String())
	}
}

// floorLoss reports what many instances cost the floor, for which nothing but the
// kernel's sockets differs, and what they cost our proxy.
func (r *Run) floorLoss(b *strings.Builder) {
	var rows strings.Builder
	for _, target := range []string{atFloor, mesh} {
		var loss, added []float64
		for repeat := range r.Config.Repeats {
			v, ok := r.churnLoss(target, repeat)
			if !ok {
				continue
			}
			loss = append(loss, v)
			more, _ := r.churned(target, repeat, func(c, base *Cell) float64 { return c.CPUPerRequest() - base.CPUPerRequest() })
			added = append(added, more)
		}
		if len(loss) == 0 {
			if target == atFloor {
				return // nothing to set ours beside
			}
			continue
		}
		fmt.Fprintf(&rows, "| %s | %s %% | %s | %s µs | %s |\n", target, number(median(loss)), spread(loss), number(median(added)), spread(added))
	}
	b.WriteString("\nThe next table has the same small requests with 1,000 instances instead of 4. The floor uses fixed addresses in turn. Its loss is the cost of so many sockets in the kernel, because they are not in the CPU's caches. Our proxy uses the instances in turn too, and also follows 50 changes a second.\n\n")
	b.WriteString("| | throughput lost | spread | CPU added to a request | spread |\n|---|---|---|---|---|\n")
	b.WriteString(rows.String())
}
