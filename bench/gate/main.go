// Command gate compares two outputs of go test -bench -benchmem -count N, and fails if a
// benchmark of the second one allocates more or is clearly slower:
//
//	gate [-time 1.3] base.txt new.txt
//
// Allocations depend little on the machine, so almost any increase counts. Times vary, so
// -time is the permitted ratio (0 does not compare times). A benchmark is worse only if both
// its best run and the median of its runs are.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Differences that rounding and pools emptied by the garbage collector may cause.
const (
	allocsSlack = 0.5   // objects
	allocsRatio = 0.005 // of the base
	bytesSlack  = 512.0
	bytesRatio  = 1.05
)

// figures has the results of one benchmark, by run.
type figures struct{ ns, bytes, allocs []float64 }

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("gate", flag.ContinueOnError)
	fs.SetOutput(stderr)
	slower := fs.Float64("time", 1.3, "permitted ratio of times; 0 does not compare times")
	if err := fs.Parse(args); err != nil {
		return 2
	}
	if fs.NArg() != 2 {
		fmt.Fprintln(stderr, "usage: gate [-time RATIO] BASE NEW")
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

// parse reads an output. Each line of a benchmark is one run.
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
				return nil, fmt.Errorf("%s: %q is not a number", name, words[i])
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
		return nil, fmt.Errorf("no benchmarks")
	}
	return out, lines.Err()
}

// compare prints a table. It returns 1 if a benchmark is worse.
func compare(base, now map[string]*figures, slower float64, w io.Writer) int {
	worse := 0
	fmt.Fprintf(w, "%-48s %22s %22s %24s\n", "benchmark", "allocs/op", "B/op", "ns/op (fastest)")
	for _, name := range slices.Sorted(maps.Keys(now)) {
		a, b := base[name], now[name]
		if a == nil {
			fmt.Fprintf(w, "%-48s new\n", name)
			continue
		}
		var reasons []string
		if rose(a.allocs, b.allocs, func(v float64) float64 { return v + max(allocsSlack, v*allocsRatio) }) {
			reasons = append(reasons, "more allocations")
		}
		if rose(a.bytes, b.bytes, func(v float64) float64 { return v*bytesRatio + bytesSlack }) {
			reasons = append(reasons, "more bytes")
		}
		if slower > 0 && rose(a.ns, b.ns, func(v float64) float64 { return v * slower }) {
			reasons = append(reasons, "slower")
		}
		fmt.Fprintf(w, "%-48s %10.0f ->%10.0f %10.0f ->%10.0f %11.0f ->%11.0f", name,
			median(a.allocs), median(b.allocs), median(a.bytes), median(b.bytes), least(a.ns), least(b.ns))
		if len(reasons) > 0 {
			worse++
			fmt.Fprintf(w, "  WORSE: %s", strings.Join(reasons, ", "))
		}
		fmt.Fprintln(w)
	}
	for _, name := range slices.Sorted(maps.Keys(base)) {
		if now[name] == nil {
			fmt.Fprintf(w, "%-48s removed\n", name)
		}
	}
	if worse > 0 {
		fmt.Fprintf(w, "\n%d benchmarks are worse\n", worse)
		return 1
	}
	fmt.Fprintln(w, "\nno benchmark is worse")
	return 0
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// rose reports whether both the median and the minimum of now exceed the values allowed for base.
func rose(base, now []float64, allowed func(float64) float64) bool {
	return median(now) > allowed(median(base)) && least(now) > allowed(least(base))
}

func least(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	return slices.Min(v)
}
