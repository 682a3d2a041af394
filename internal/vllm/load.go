package vllm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// maxRanks is how many data-parallel ranks of one server are read.
const maxRanks = 256

// RankLoad is the load of one data-parallel rank of a server, as its metrics show it.
type RankLoad struct {
	Rank    int     // label engine
	Blocks  int64   // of the KV cache; 0 if unknown
	Block   int64   // tokens in one block
	Usage   float64 // share of the blocks in use, from 0 to 1
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
	// PromptTokens and GeneratedTokens are counters since the start of the process.
	PromptTokens, GeneratedTokens float64
	// CacheQueries and CacheHits are the tokens looked up and found in prefix caches, and
	// PrefillSeconds is the time that requests spent in prefill, since the start of the process.
	CacheQueries, CacheHits, PrefillSeconds float64
	// Core reports whether Usage, Running, Waiting, PromptTokens and GeneratedTokens were all in
	// the answer. The engine core sends them with every step, so that a core that computes
	// changes one of them (vllm/v1/core/sched/scheduler.py, make_stats). With
	// --disable-log-stats they are absent.
	Core bool
}

// SameCore reports whether none of the samples of Core differs between two readings of a rank.
func (r *RankLoad) SameCore(o *RankLoad) bool {
	return r.Rank == o.Rank && r.Running == o.Running && r.Waiting == o.Waiting && r.Usage == o.Usage &&
		r.PromptTokens == o.PromptTokens && r.GeneratedTokens == o.GeneratedTokens
}

// ComputedTokens returns how many prompt tokens the rank has computed itself since the start of
// the process: all but those found in a cache. An engine without a prefix cache looks up none.
func (r *RankLoad) ComputedTokens() float64 {
	if r.CacheQueries > 0 {
		return max(0, r.CacheQueries-r.CacheHits)
	}
	return r.PromptTokens
}

// Load reads the load of each rank from GET /metrics, ordered by rank. The path needs no key.
// It returns no ranks if the server reports none.
func (c *Client) Load(ctx context.Context, base string) ([]RankLoad, error) {
	var ranks []RankLoad
	err := c.get(ctx, base, "/metrics", false, func(r io.Reader) error {
		var err error
		ranks, err = parseLoad(r, maxMetricsBytes)
		return err
	})
	if err != nil {
		return nil, err
	}
	return ranks, nil
}

// parseLoad parses the Prometheus text format line by line and skips lines of other metrics.
func parseLoad(r io.Reader, limit int64) ([]RankLoad, error) {
	lr := &io.LimitedReader{R: r, N: limit + 1}
	br := bufio.NewReaderSize(lr, 16<<10)
	var p loadParser
	for {
		part, err := br.ReadSlice('\n')
		whole := !errors.Is(err, bufio.ErrBufferFull)
		if whole && aboutLoad(part) {
			p.add(string(part))
		}
		for errors.Is(err, bufio.ErrBufferFull) { // none of the lines needed is that long
			_, err = br.ReadSlice('\n')
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	if lr.N <= 0 {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	}
	for i, seen := range p.seen {
		p.ranks[i].Core = seen == coreSamples
	}
	return p.ranks, nil
}

// aboutLoad reports whether a line may be a sample that loadParser needs.
func aboutLoad(line []byte) bool {
	rest, ours := bytes.CutPrefix(line, []byte("vllm:"))
	if !ours {
		return false
	}
	for _, name := range [...]string{"num_requests_", "kv_cache_usage_", "cache_config_", "gpu_cache_usage_", "prompt_tokens_total", "generation_tokens_total",
		"prefix_cache_", "external_prefix_cache_", "request_prefill_time_seconds_sum"} {
		if len(rest) >= len(name) && string(rest[:len(name)]) == name {
			return true
		}
	}
	return false
}

// The samples of RankLoad.Core, as bits.
const (
	seenRunning = 1 << iota
	seenWaiting
	seenUsage
	seenPrompt
	seenGenerated
	coreSamples = 1<<iota - 1
)

// loadParser collects the samples of each rank.
type loadParser struct {
	ranks []RankLoad
	seen  []uint8 // samples of Core, by the index in ranks
}

// add adds the sample of a line to its rank.
func (p *loadParser) add(line string) {
	name, value, ok := sample(line)
	if !ok || value < 0 {
		return
	}
	labels := line[len(name):]
	number, _ := strconv.Atoi(label(labels, "engine")) // none: the only one
	at, known := slices.BinarySearchFunc(p.ranks, number, func(r RankLoad, n int) int { return r.Rank - n })
	if !known {
		if number < 0 || number > 1<<20 || len(p.ranks) == maxRanks {
			return
		}
		p.ranks = slices.Insert(p.ranks, at, RankLoad{Rank: number})
		p.seen = slices.Insert(p.seen, at, 0)
	}
	is := &p.ranks[at]
	switch name {
	case "vllm:num_requests_running":
		is.Running += value
		p.seen[at] |= seenRunning
	case "vllm:num_requests_waiting":
		is.Waiting += value
		p.seen[at] |= seenWaiting
	case "vllm:num_requests_waiting_by_reason":
		switch label(labels, "reason") {
		case "capacity":
			is.Starved += value
		case "deferred":
			is.Deferred += value
		}
	case "vllm:num_requests_kv_fetch_by_stage":
		if label(labels, "stage") != "completed_waiting" {
			is.Fetching += value
		}
	case "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc": // the latter before 0.10; a release shows both
		is.Usage = min(max(is.Usage, value), 1)
		p.seen[at] |= seenUsage
	case "vllm:prompt_tokens_total":
		is.PromptTokens += value
		p.seen[at] |= seenPrompt
	case "vllm:generation_tokens_total":
		is.GeneratedTokens += value
		p.seen[at] |= seenGenerated
	case "vllm:prefix_cache_queries_total":
		is.CacheQueries += value
	case "vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_hits_total":
		is.CacheHits += value
	case "vllm:request_prefill_time_seconds_sum":
		is.PrefillSeconds += value
	case "vllm:cache_config_info":
		// "None" before the engine has measured its KV cache.
		is.Blocks, _ = strconv.ParseInt(label(labels, "num_gpu_blocks"), 10, 32)
		is.Block, _ = strconv.ParseInt(label(labels, "block_size"), 10, 32)
		if is.Blocks < 0 || is.Block < 0 {
			is.Blocks, is.Block = 0, 0
		}
	}
}

// label returns the value of a label of a line as it is written; those that are looked
// for have nothing that is escaped. It is "" for one that is not there.
func label(labels, name string) string {
	if labels == "" || labels[0] != '{' {
		return ""
	}
	rest := labels[1:]
	for {
		rest = strings.TrimLeft(rest, " \t,")
		eq := strings.IndexByte(rest, '=')
		if eq < 0 || rest[0] == '}' {
			return ""
		}
		is := strings.TrimSpace(rest[:eq])
		rest = strings.TrimLeft(rest[eq+1:], " \t")
		if rest == "" || rest[0] != '"' {
			return ""
		}
		end := 1
		for end < len(rest) && rest[end] != '"' {
			if rest[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(rest) {
			return ""
		}
		if is == name {
			return rest[1:end]
		}
		rest = rest[end+1:]
	}
}
