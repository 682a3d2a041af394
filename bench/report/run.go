package report

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/sim/loadgen"
)

// Run is everything that one run of the benchmark found.
type Run struct {
	Started time.Time     `json:"started"`
	Took    float64       `json:"took_seconds"`
	Commit  string        `json:"commit"`
	Machine machine.Facts `json:"machine"`
	Config  Config        `json:"config"`
	// Idle is how the machine was before each repeat, with nothing to do.
	Idle []machine.Speed `json:"idle,omitempty"`
	// Calm is how it was waited for quiet moments, nil if it was not.
	Calm  *Calm  `json:"calm,omitempty"`
	Cells []Cell `json:"cells"`
	// Notes are what the reader must know to judge the figures.
	Notes []string `json:"notes,omitempty"`
}

// Calm reports how it was waited for moments in which the machine was quiet, by what
// a small request took of the floor, in µs of CPU.
type Calm struct {
	// Patience and Waited are seconds: what could be waited in all, and what was.
	Patience float64 `json:"patience_seconds"`
	Waited   float64 `json:"waited_seconds"`
	// Best is the least that was seen, or known beforehand; what begins may find Tolerated times as much.
	Best      float64 `json:"best_us"`
	Tolerated float64 `json:"tolerated"`
	// Begun is what each wait ended with; Anyway counts those that ended for want of
	// patience.
	Begun  []float64 `json:"begun_us"`
	Anyway int       `json:"anyway"`
	// Problem is why a probe gave no answer; then nothing was waited for.
	Problem string `json:"problem,omitempty"`
}

// Config is what the run was asked for.
type Config struct {
	Workloads []string `json:"workloads"`
	Targets   []string `json:"targets"`
	Repeats   int      `json:"repeats"`
	Seconds   float64  `json:"seconds"`
	Engine    string   `json:"engine"`
	Connector string   `json:"connector"`
	Pinned    bool     `json:"pinned"`
	// Awake reports whether engines and generator did not sleep while they waited.
	Awake      bool     `json:"awake"`
	ProxyFlags []string `json:"proxy_flags,omitempty"`
	Rate       float64  `json:"rate,omitempty"`
	Seed       uint64   `json:"seed"`
	Nginx      string   `json:"nginx,omitempty"`
}

// Cell is one target under one workload, once.
type Cell struct {
	Workload string `json:"workload"`
	Target   string `json:"target"`
	Repeat   int    `json:"repeat"`
	// Turn counts the cells of workloads that take turns within a repeat.
	Turn int `json:"turn,omitempty"`
	// Skipped says why there are no figures.
	Skipped string `json:"skipped,omitempty"`

	// Seconds is the length of the window in which the following was counted.
	Seconds float64 `json:"seconds"`
	Right   uint64  `json:"right"`
	Tokens  uint64  `json:"tokens"`
	Events  uint64  `json:"events"` // of event streams, tokens and the rest

	// Over the cell's whole life, warm-up included.
	Wrong    uint64   `json:"wrong"`
	Broken   uint64   `json:"broken"`
	Failed   uint64   `json:"failed"`
	Left     uint64   `json:"left"`
	Problems []string `json:"problems,omitempty"`

	TTFT  Times `json:"ttft"`
	ITL   Times `json:"itl"`
	Total Times `json:"total"`

	// CPU is the target's processor time in the window in seconds; 0 for
	// targets without a process.
	CPU float64 `json:"cpu_seconds,omitempty"`
	// Memory of the target in KiB: before the load, median during the window,
	// and at most.
	RSSIdle int64 `json:"rss_idle_kib,omitempty"`
	RSS     int64 `json:"rss_kib,omitempty"`
	RSSPeak int64 `json:"rss_peak_kib,omitempty"`
	// Clients and Open: how many there were, and in how many answers the first
	// token had come when the window began.
	Clients int `json:"clients"`
	Open    int `json:"open,omitempty"`
	Prompt  int `json:"prompt_bytes"`

	// Aborted is the time from the first client leaving until the engines had
	// seen the last request go, Leaving until the last client had left.
	Aborted float64 `json:"aborted_seconds,omitempty"`
	Leaving float64 `json:"leaving_seconds,omitempty"`
	// NotAborted are the requests the engines still held after a minute.
	NotAborted int64 `json:"not_aborted,omitempty"`

	// What the engines saw over the cell's life.
	Prefills   uint64 `json:"prefills"`
	Handovers  uint64 `json:"handovers"`
	Violations uint64 `json:"violations"`
	// Bare are requests that our proxy sent to a decode engine without the KV
	// cache of a prefill: answered right, but by other work than was measured.
	Bare uint64 `json:"bare,omitempty"`
	// Changes of the membership during the cell.
	Changes int `json:"changes,omitempty"`
}

// Times are quantiles in milliseconds.
type Times struct {
	Count uint64  `json:"count"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p99.9"`
	Max   float64 `json:"max"`
}

// TimesOf reads a histogram.
func TimesOf(h *loadgen.Histogram) Times {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return Times{
		Count: h.Count(), P50: ms(h.Quantile(0.5)), P90: ms(h.Quantile(0.9)),
		P99: ms(h.Quantile(0.99)), P999: ms(h.Quantile(0.999)), Max: ms(h.Max()),
	}
}

// Throughput is right answers per second, or tokens per second where answers
// last longer than the window counts them well.
func (c *Cell) Throughput() float64 {
	if c.Seconds == 0 {
		return 0
	}
	if c.byTokens() {
		return float64(c.Tokens) / c.Seconds
	}
	return float64(c.Right) / c.Seconds
}

func (c *Cell) byTokens() bool { return c.Open > 0 }

// Unit is that of Throughput.
func (c *Cell) Unit() string {
	if c.byTokens() {
		return "tokens/s"
	}
	return "requests/s"
}

// CPUPerRequest is the target's processor time per right answer in µs.
func (c *Cell) CPUPerRequest() float64 {
	if c.Right == 0 {
		return 0
	}
	return c.CPU / float64(c.Right) * 1e6
}

// CPUPerStream is its processor time for a stream of so many tokens in µs. It counts by
// the token, as a stream may begin or end outside of the window.
func (c *Cell) CPUPerStream(tokens int) float64 {
	if c.Tokens == 0 {
		return 0
	}
	return c.CPU / float64(c.Tokens) * float64(tokens) * 1e6
}

// CPUPerMillionEvents is its processor time per million events in seconds.
func (c *Cell) CPUPerMillionEvents() float64 {
	if c.Events == 0 {
		return 0
	}
	return c.CPU / float64(c.Events) * 1e6
}

// RSSPerStream is what an open stream adds to its memory in KiB.
func (c *Cell) RSSPerStream() float64 {
	if c.Open == 0 {
		return 0
	}
	return float64(c.RSS-c.RSSIdle) / float64(c.Open)
}

// PeakPerBody is what a request adds to its memory at most, as a multiple of
// the prompt.
func (c *Cell) PeakPerBody() float64 {
	if c.RSSPeak == 0 || c.Clients == 0 {
		return 0
	}
	return float64(c.RSSPeak-c.RSSIdle) * 1024 / float64(c.Clients) / float64(c.Prompt)
}

// Bad is the number of requests that were not answered as they should.
func (c *Cell) Bad() uint64 { return c.Wrong + c.Broken + c.Failed }

// Read reads a run from a file.
func Read(path string) (*Run, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	var r Run
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("read results: %s is not what a run writes: %w", path, err)
	}
	return &r, nil
}

// Write writes it.
func (r *Run) Write(path string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}

// targets lists the targets in the order in which they first ran.
func (r *Run) targets() (names []string) {
	for i := range r.Cells {
		if !slices.Contains(names, r.Cells[i].Target) {
			names = append(names, r.Cells[i].Target)
		}
	}
	return names
}

// workloads does the same for workloads.
func (r *Run) workloads() (names []string) {
	for i := range r.Cells {
		if !slices.Contains(names, r.Cells[i].Workload) {
			names = append(names, r.Cells[i].Workload)
		}
	}
	return names
}

// cell finds one; nil if it was not run or skipped.
func (r *Run) cell(workload, target string, repeat int) *Cell {
	return r.turn(workload, target, repeat, 0)
}

// turn finds a cell of a workload that takes turns.
func (r *Run) turn(workload, target string, repeat, turn int) *Cell {
	for i := range r.Cells {
		c := &r.Cells[i]
		if c.Workload == workload && c.Target == target && c.Repeat == repeat && c.Turn == turn && c.Skipped == "" {
			return c
		}
	}
	return nil
}
