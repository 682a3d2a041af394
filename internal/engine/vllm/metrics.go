package vllm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// maxRanks bounds the data-parallel ranks that are read from one page; Load returns at most instance.MaxRanks
// of them.
const maxRanks = 4 * instance.MaxRanks

// Stats is the load of one server, summed over its data-parallel ranks, and the facts that
// its metrics show.
type Stats struct {
	Running  float64 // requests being computed
	Waiting  float64 // requests queued
	Finished float64 // requests that ended for any reason since the start of the process
	// StartedAt is process_start_time_seconds; zero if absent, as from a server with several
	// API processes.
	StartedAt time.Time
	// Ranks is the number of data-parallel ranks behind the address; 0 if unknown.
	Ranks int
	// NIXL reports whether the engine transfers KV caches by NIXL, possibly inside a MultiConnector. Such an
	// engine has these metrics from its start.
	NIXL bool
	// Complete reports whether both Running and Waiting were in the answer. Without it a zero
	// means "unknown", not "idle".
	Complete bool
}

// AddTo adds the facts that the metrics show about the engine.
func (s Stats) AddTo(facts *instance.Facts) {
	facts.StartedAt, facts.DPSize = s.StartedAt, s.Ranks
	if s.NIXL {
		facts.Transfer = instance.TransferNIXL
	}
}

// Idle reports whether the engine certainly has no requests.
func (s Stats) Idle() bool { return s.Complete && s.Running == 0 && s.Waiting == 0 }

// RankLoad is the load of one data-parallel rank of a server, as its metrics show it.
type RankLoad struct {
	Rank      int       // label engine
	StartedAt time.Time // of the server, see Stats
	Blocks    int64     // of the KV cache; 0 if unknown
	Block     int64     // tokens in one block
	// Usage is the share of the blocks in use, from 0 to 1. On a prefill instance it includes the
	// blocks pinned for decode instances, even while no request runs.
	Usage   float64
	Running float64
	Waiting float64
	// Starved is the part of Waiting for which the KV cache has no free blocks; 0 from engines
	// before 0.20, which do not report it.
	Starved float64
	// Deferred is the part of Waiting that waits for something else, such as a KV cache from
	// another instance; 0 if the engine does not report it.
	Deferred float64
	// Fetching is the number of requests of a decode instance whose KV cache is being fetched
	// or is still to be fetched.
	Fetching float64
	// Fetched is the part of Deferred whose KV cache has arrived, and which waits for a slot among the
	// running requests; 0 from engines before 0.32, which do not report it.
	Fetched float64
	// PromptTokens and GeneratedTokens are counters since the start of the process.
	PromptTokens, GeneratedTokens float64
	// CacheQueries and CacheHits are the tokens looked up and found in prefix caches, and
	// PrefillSeconds is the time that requests spent in prefill, since the start of the process.
	CacheQueries, CacheHits, PrefillSeconds float64
	// Core reports whether Usage, Running, Waiting, PromptTokens and GeneratedTokens were all in the answer.
	// The engine core sends them with every step, so a core that computes changes one of them
	// (vllm/v1/core/sched/scheduler.py, make_stats). With --disable-log-stats they are absent.
	Core bool
}

// SameCore reports whether none of the samples of Core differs between two readings of a rank.
func (r *RankLoad) SameCore(o *RankLoad) bool {
	return r.Rank == o.Rank && r.Running == o.Running && r.Waiting == o.Waiting && r.Usage == o.Usage &&
		r.PromptTokens == o.PromptTokens && r.GeneratedTokens == o.GeneratedTokens
}

// TrialsSince reports whether calls of Trial, by any proxy, explain the changes of the samples of Core since
// the earlier reading o. Each call adds one prompt token and one generated token. open reports whether some
// calls are not done; other requests may look the same for a moment.
func (r *RankLoad) TrialsSince(o *RankLoad) (only, open bool) {
	more := r.Running + r.Waiting - o.Running - o.Waiting
	generated := r.GeneratedTokens - o.GeneratedTokens
	begun := r.PromptTokens - o.PromptTokens - generated // trials whose token is not generated yet
	open = more > 0
	same := r.Running == o.Running && r.Waiting == o.Waiting && r.Usage == o.Usage
	return r.Rank == o.Rank && generated >= 0 && begun >= 0 && begun <= more && (open || same), open
}

// ComputedTokens returns the number of prompt tokens that the rank has computed itself since the start of the
// process: all but those found in a cache. Engines without a prefix cache report no queries.
func (r *RankLoad) ComputedTokens() float64 {
	if r.CacheQueries > 0 {
		return max(0, r.CacheQueries-r.CacheHits)
	}
	return r.PromptTokens
}

// Stats reads GET /metrics. The path needs no key.
func (c *Client) Stats(ctx context.Context, base string) (Stats, error) {
	p, err := c.metrics(ctx, base)
	return p.stats(), err
}

// Load reads the load of each rank from GET /metrics, ordered by rank. The path needs no key.
// It returns no ranks if the server reports none.
func (c *Client) Load(ctx context.Context, base string) ([]RankLoad, error) {
	p, err := c.metrics(ctx, base)
	return p.load(), err
}

// metrics reads GET /metrics; the page is empty if it returns an error.
func (c *Client) metrics(ctx context.Context, base string) (p page, err error) {
	err = c.get(ctx, base, "/metrics", false, func(r io.Reader) error {
		p, err = parsePage(r, maxMetricsBytes)
		return err
	})
	return p, err
}

// page collects the samples of /metrics that Stats and Load need.
type page struct {
	ranks    []rank // ordered by Rank
	finished float64
	started  time.Time
	nixl     bool
}

type rank struct {
	RankLoad
	seen uint8 // samples of Core, as bits
}

// The samples of RankLoad.Core.
const (
	seenRunning = 1 << iota
	seenWaiting
	seenUsage
	seenPrompt
	seenGenerated
	coreSamples = 1<<iota - 1
)

// load returns the ranks that requests can address.
func (p *page) load() []RankLoad {
	var ranks []RankLoad
	for _, r := range p.ranks[:min(len(p.ranks), instance.MaxRanks)] {
		r.Core, r.StartedAt = r.seen == coreSamples, p.started
		ranks = append(ranks, r.RankLoad)
	}
	return ranks
}

// stats returns the sums over all ranks.
func (p *page) stats() Stats {
	s := Stats{Finished: p.finished, StartedAt: p.started, NIXL: p.nixl}
	seen := uint8(0)
	for _, r := range p.ranks {
		seen |= r.seen
		s.Running += r.Running
		s.Waiting += r.Waiting
		if r.seen&seenRunning != 0 {
			s.Ranks++
		}
	}
	s.Complete = seen&seenRunning != 0 && seen&seenWaiting != 0
	return s
}

// parsePage parses the Prometheus text format line by line. Lines of other metrics, most of a
// page, are skipped by their first bytes, and so are invalid lines. A page of 210 kB with eight
// ranks takes 0.3 ms; expfmt takes 8 ms for it, and 1.1 ms for the lines that are not skipped.
func parsePage(r io.Reader, limit int64) (page, error) {
	lr := &io.LimitedReader{R: r, N: limit + 1}
	br := bufio.NewReaderSize(lr, 16<<10)
	var p page
	for {
		line, err := br.ReadSlice('\n')
		if line = bytes.TrimLeft(line, " \t"); !errors.Is(err, bufio.ErrBufferFull) && isWanted(line) {
			p.add(string(line))
		}
		for errors.Is(err, bufio.ErrBufferFull) { // no sample that is needed is longer than the buffer
			_, err = br.ReadSlice('\n')
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return page{}, err
		}
	}
	if lr.N <= 0 {
		return page{}, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	}
	return p, nil
}

// isWanted reports whether line may be a sample that page.add reads.
func isWanted(line []byte) bool {
	rest, ours := bytes.CutPrefix(line, []byte("vllm:"))
	if !ours {
		return bytes.HasPrefix(line, []byte("process_start_"))
	}
	for _, name := range [...]string{"num_requests_", "kv_cache_usage_", "cache_config_", "gpu_cache_usage_", "prompt_tokens_total", "generation_tokens_total",
		"prefix_cache_", "external_prefix_cache_", "request_prefill_time_seconds_sum", "request_success_", "nixl_"} {
		if len(rest) >= len(name) && string(rest[:len(name)]) == name {
			return true
		}
	}
	return false
}

// add reads the sample of a line.
func (p *page) add(line string) {
	var buf [32]label // enough for vllm:cache_config_info, which has the most
	name, labels, value, ok := parseSample(line, buf[:0])
	if !ok || value < 0 {
		return
	}
	switch name {
	case "process_start_time_seconds":
		if value > 0 && value < 1e11 {
			sec, frac := math.Modf(value)
			p.started = time.Unix(int64(sec), int64(math.Round(frac*1e3))*int64(time.Millisecond)).UTC()
		}
	case "vllm:nixl_num_failed_transfers_total", "vllm:nixl_xfer_time_seconds_count":
		p.nixl = true
	case "vllm:request_success_total":
		p.finished += value
	default:
		number, _ := strconv.Atoi(labels.get("engine")) // absent: the only rank
		at, known := slices.BinarySearchFunc(p.ranks, number, func(r rank, n int) int { return r.Rank - n })
		if !known {
			if number < 0 || number > 1<<20 || len(p.ranks) == maxRanks {
				return
			}
			p.ranks = slices.Insert(p.ranks, at, rank{RankLoad: RankLoad{Rank: number}})
		}
		p.ranks[at].add(name, labels, value)
	}
}

// add adds a sample of the rank.
func (r *rank) add(name string, labels labels, value float64) {
	switch name {
	case "vllm:num_requests_running":
		r.Running += value
		r.seen |= seenRunning
	case "vllm:num_requests_waiting":
		r.Waiting += value
		r.seen |= seenWaiting
	case "vllm:num_requests_waiting_by_reason":
		switch labels.get("reason") {
		case "capacity":
			r.Starved += value
		case "deferred":
			r.Deferred += value
		}
	case "vllm:num_requests_kv_fetch_by_stage":
		if labels.get("stage") == "completed_waiting" {
			r.Fetched += value
		} else {
			r.Fetching += value
		}
	case "vllm:kv_cache_usage_perc":
		r.Usage = min(value, 1)
		r.seen |= seenUsage
	case "vllm:gpu_cache_usage_perc": // the name before 0.10; one release has both
		if r.seen&seenUsage == 0 {
			r.Usage = min(value, 1)
			r.seen |= seenUsage
		}
	case "vllm:prompt_tokens_total":
		r.PromptTokens += value
		r.seen |= seenPrompt
	case "vllm:generation_tokens_total":
		r.GeneratedTokens += value
		r.seen |= seenGenerated
	case "vllm:prefix_cache_queries_total":
		r.CacheQueries += value
	case "vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_hits_total":
		r.CacheHits += value
	case "vllm:request_prefill_time_seconds_sum":
		r.PrefillSeconds += value
	case "vllm:cache_config_info":
		// "None" before the engine has measured its KV cache.
		r.Blocks, _ = strconv.ParseInt(labels.get("num_gpu_blocks"), 10, 32)
		r.Block, _ = strconv.ParseInt(labels.get("block_size"), 10, 32)
		if r.Blocks < 0 || r.Block < 0 {
			r.Blocks, r.Block = 0, 0
		}
	}
}

// label is a label of a sample; its value keeps its escape sequences.
type label struct{ name, value string }

type labels []label

// get returns the value of a label, or "".
func (l labels) get(name string) string {
	for _, is := range l {
		if is.name == name {
			return is.value
		}
	}
	return ""
}

// parseSample splits `name{labels} value [timestamp]`. It appends the labels to list.
func parseSample(line string, list labels) (name string, _ labels, value float64, ok bool) {
	end := strings.IndexAny(line, "{ \t")
	if end <= 0 {
		return "", nil, 0, false
	}
	name, rest := line[:end], line[end:]
	if rest[0] == '{' {
		if list, rest, ok = parseLabels(rest[1:], list); !ok {
			return "", nil, 0, false
		}
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 || len(fields) > 2 {
		return "", nil, 0, false
	}
	value, err := strconv.ParseFloat(fields[0], 64)
	return name, list, value, err == nil && !math.IsNaN(value) && !math.IsInf(value, 0)
}

// parseLabels splits `name="value",…}`, appends the labels to list and returns the text after the
// brace.
func parseLabels(s string, list labels) (_ labels, rest string, ok bool) {
	for {
		s = strings.TrimLeft(s, " \t,")
		if rest, ok = strings.CutPrefix(s, "}"); ok {
			return list, rest, true
		}
		name, quoted, _ := strings.Cut(s, "=")
		quoted, ok = strings.CutPrefix(strings.TrimLeft(quoted, " \t"), `"`)
		end := 0
		for end < len(quoted) && quoted[end] != '"' {
			if quoted[end] == '\\' {
				end++
			}
			end++
		}
		if !ok || end >= len(quoted) {
			return nil, "", false
		}
		list = append(list, label{strings.TrimSpace(name), quoted[:end]})
		s = quoted[end+1:]
	}
}
