package report

import (
	"fmt"
	"strings"
)

// goalMachine is what one request through nginx as a plain reverse proxy cost on
// the machine on which the goals were set, in µs of CPU, and the goal there.
var goalMachine = []struct { //nolint:gochecknoglobals // a table
	workload, text string
	nginx, must    float64
}{
	{"small", "128 B, 1 token", 11, 32},
	{"stream", "64-token stream", 136, 160},
	{"prompt64k", "64 KiB prompt", 26, 75},
	{"prompt1m", "1 MiB prompt", 367, 1000},
}

// besideNginx sets the CPU per request in relation to nginx's in the same
// repeat: processors and kernels differ, and goals in µs hold for one of them.
func (r *Run) besideNginx(b *strings.Builder) {
	var rows strings.Builder
	for _, g := range goalMachine {
		ours, nginx := r.pairs(g.workload, "nginx")
		if len(nginx) == 0 {
			continue
		}
		times := each(ours, nginx, quotient)
		fmt.Fprintf(&rows, "| %s | %s µs | %s µs | %s | %s | %s |\n", g.text, number(g.nginx), number(median(nginx)),
			number(g.must/g.nginx), number(median(times)), spread(times))
	}
	if rows.Len() == 0 {
		return
	}
	b.WriteString("\n### Beside nginx\n\nThe goals in µs were set on another machine. What nginx takes for its one hop on both machines, the goal there as a multiple of it, and our proxy's two hops here as a multiple of nginx's in the same repeat:\n\n")
	b.WriteString("| CPU per request | nginx there | nginx here | goal / nginx there | measured / nginx here | spread |\n|---|---|---|---|---|---|\n")
	b.WriteString(rows.String())
}

// pairs are the CPU per request of our proxy and of another target, in µs, in
// the repeats in which both were measured.
func (r *Run) pairs(workload, target string) (ours, others []float64) {
	for repeat := range r.Config.Repeats {
		c, base := r.cell(workload, mesh, repeat), r.cell(workload, target, repeat)
		if c == nil || base == nil || c.CPUPerRequest() == 0 || base.CPUPerRequest() == 0 {
			continue
		}
		ours, others = append(ours, c.CPUPerRequest()), append(others, base.CPUPerRequest())
	}
	return ours, others
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

// besideFloor sets the CPU per request in relation to what the system calls of
// two hops cost here.
func (r *Run) besideFloor(b *strings.Builder) {
	var rows strings.Builder
	for _, g := range goalMachine {
		ours, floors := r.pairs(g.workload, atFloor)
		if len(ours) == 0 {
			continue
		}
		above, times := each(ours, floors, difference), each(ours, floors, quotient)
		fmt.Fprintf(&rows, "| %s | %s µs | %s µs | %s µs | %s µs | %s | %s | %s |\n", g.text, number(median(floors)), number(g.must),
			number(median(ours)), number(median(above)), spread(above), number(median(times)), spread(times))
	}
	if rows.Len() > 0 {
		b.WriteString("\n### Beside the floor\n\nWhat the system calls of two hops alone take on this machine, by a process that does nothing else, the goal from the other machine, and what our proxy takes beyond the floor in the same repeat:\n\n")
		b.WriteString("| CPU per request | floor | goal | measured | above the floor | spread | measured / floor | spread |\n|---|---|---|---|---|---|---|---|\n")
		b.WriteString(rows.String())
	}
	r.floorRatio(b)
	r.floorLoss(b)
}

// floorRatio tells how much of the two-hop limit the floor reaches, since that limit
// depends on how quick the harness is on this machine.
func (r *Run) floorRatio(b *strings.Builder) {
	var rows strings.Builder
	for _, g := range goalMachine {
		var limits, floors, ours []float64
		for repeat := range r.Config.Repeats {
			floor, ok := r.Ratio(g.workload, atFloor, repeat)
			our, also := r.Ratio(g.workload, mesh, repeat)
			if !ok || !also || floor == 0 {
				continue
			}
			limits = append(limits, 1e6/r.cell(g.workload, twoHop, repeat).Throughput())
			floors, ours = append(floors, floor), append(ours, our)
		}
		if len(ours) == 0 {
			continue
		}
		times := each(ours, floors, quotient)
		fmt.Fprintf(&rows, "| %s | %s µs | %s | %s | %s | %s |\n", g.text, number(median(limits)), number(median(floors)),
			number(median(ours)), number(median(times)), spread(times))
	}
	if rows.Len() > 0 {
		b.WriteString("\nWhat they reach of the two-hop limit. That is what engines and generator take for both hops on a core that they share, caches and all. Where the target's core is the bottleneck, as with small requests, what makes the same calls as the floor reaches no more than it; where the harness is, as with streams, what the target makes the harness do counts for more:\n\n")
		b.WriteString("| throughput / two-hop limit | the limit's time per request | floor | measured | measured / floor | spread |\n|---|---|---|---|---|---|\n")
		b.WriteString(rows.String())
	}
}

// floorLoss tells what many instances cost the floor, for which nothing but the
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
	b.WriteString("\nThe same small requests over 1,000 instances instead of 4. The floor is given addresses that never change and takes them one after the other, so what it loses is what so many sockets cost in the kernel, out of the caches as they are; our proxy takes them one after the other too, and follows 50 changes a second as well:\n\n")
	b.WriteString("| | throughput lost | spread | CPU added to a request | spread |\n|---|---|---|---|---|\n")
	b.WriteString(rows.String())
}
