// Command gate compares two outputs of `go test -bench -benchmem` with repeats
// and fails when the newer one allocates more or takes clearly longer:
//
//	gate [-time 1.3] base.txt new.txt
//
// Objects and bytes per operation are nearly exact on any machine, so nearly any
// rise counts. Time is not: -time says how many times the base's it may take (0:
// time is not judged). What got worse is worse in the best of the repeats and in
// their median, in either of which chance may have its part.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// What may come from rounding and from pools that the collector emptied.
const (
	allocsSlack = 0.5   // objects
	allocsRatio = 0.005 // of the base
	bytesSlack  = 512.0
	bytesRatio  = 1.05
)

// figures of one benchmark: each repeat's.
type figures struct{ ns, bytes, allocs []float64 }

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("gate", flag.ContinueOnError)
	fs.SetOutput(stderr)
	slower := fs.Float64("time", 1.3, "how many times the base's time is too slow; 0 does not judge time")
	if err := fs.Parse(args); err != nil {
		return 2
	}
	if fs.NArg() != 2 {
		fmt.Fprintln(stderr, "gate: give two files: the base's output and the new one")
		return 2
	}
	var sides [2]map[string]*figures
	for i := range sides {
		f, err := os.Open(fs.Arg(i))
		if err != nil {
			fmt.Fprintln(stderr, "gate:", err)
			return 2
		}
		sides[i], err = parse(f)
		_ = f.Close() // read only
		if err != nil {
			fmt.Fprintf(stderr, "gate: %s: %v\n", fs.Arg(i), err)
			return 2
		}
	}
	return compare(sides[0], sides[1], *slower, stdout)
}

// parse reads the lines of benchmarks; several lines of one are its repeats.
func parse(r io.Reader) (map[string]*figures, error) {
	out := map[string]*figures{}
	pkg := ""
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		if p, ok := strings.CutPrefix(line, "pkg: "); ok {
			pkg = p[strings.LastIndexByte(p, '/')+1:]
			continue
		}
		words := strings.Fields(line)
		if len(words) < 4 || !strings.HasPrefix(words[0], "Benchmark") {
			continue
		}
		name := pkg + "." + words[0]
		f := out[name]
		if f == nil {
			f = &figures{}
			out[name] = f
		}
		for i := 2; i+1 < len(words); i += 2 {
			v, err := strconv.ParseFloat(words[i], 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %q is no number", name, words[i])
			}
			switch words[i+1] {
			case "ns/op":
				f.ns = append(f.ns, v)
			case "B/op":
				f.bytes = append(f.bytes, v)
			case "allocs/op":
				f.allocs = append(f.allocs, v)
			}
		}
	}
	if len(out) == 0 && lines.Err() == nil {
		return nil, fmt.Errorf("no benchmark in it")
	}
	return out, lines.Err()
}

// compare prints a table and returns 1 if anything got worse.
func compare(base, now map[string]*figures, slower float64, w io.Writer) int {
	worse := 0
	fmt.Fprintf(w, "%-48s %22s %22s %24s\n", "benchmark", "allocs/op", "B/op", "ns/op (fastest)")
	for _, name := range sorted(now) {
		a, b := base[name], now[name]
		if a == nil {
			fmt.Fprintf(w, "%-48s new\n", name)
			continue
		}
		var complaints []string
		if rose(a.allocs, b.allocs, func(v float64) float64 { return v + max(allocsSlack, v*allocsRatio) }) {
			complaints = append(complaints, "more objects")
		}
		if rose(a.bytes, b.bytes, func(v float64) float64 { return v*bytesRatio + bytesSlack }) {
			complaints = append(complaints, "more bytes")
		}
		if slower > 0 && rose(a.ns, b.ns, func(v float64) float64 { return v * slower }) {
			complaints = append(complaints, "slower")
		}
		fmt.Fprintf(w, "%-48s %10.0f ->%10.0f %10.0f ->%10.0f %11.0f ->%11.0f", name,
			median(a.allocs), median(b.allocs), median(a.bytes), median(b.bytes), least(a.ns), least(b.ns))
		if len(complaints) > 0 {
			worse++
			fmt.Fprintf(w, "  WORSE: %s", strings.Join(complaints, ", "))
		}
		fmt.Fprintln(w)
	}
	for _, name := range sorted(base) {
		if now[name] == nil {
			fmt.Fprintf(w, "%-48s gone: nothing to compare\n", name)
		}
	}
	if worse > 0 {
		fmt.Fprintf(w, "\n%d benchmarks got worse\n", worse)
		return 1
	}
	fmt.Fprintln(w, "\nno benchmark got worse")
	return 0
}

func sorted(m map[string]*figures) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// rose reports whether the newer figures are above what the base's allow.
func rose(base, now []float64, allowed func(float64) float64) bool {
	return median(now) > allowed(median(base)) && least(now) > allowed(least(base))
}

func least(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	return slices.Min(v)
}
