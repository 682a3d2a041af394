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

// RankLoad is what one data-parallel rank of a server says of its load.
type RankLoad struct {
	Rank    int     // label engine
	Blocks  int64   // of the KV cache, 0 if not told
	Block   int64   // tokens of one
	Usage   float64 // part of the blocks in use, from 0 to 1
	Running float64
	Waiting float64
	// Starved are those of Waiting for which the KV cache has no room; 0 also where the
	// engine, being older than 0.20, does not say.
	Starved float64
	// Deferred are those of Waiting that wait for something else, such as a KV cache from
	// elsewhere; 0 where the engine does not say.
	Deferred float64
	// Fetching are requests of a decode instance whose KV cache is being fetched or has
	// yet to be.
	Fetching float64
}

// Load asks GET /metrics for the load of each rank, in the order of the ranks. The
// path needs no key. None: the server does not say.
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

// parseLoad reads the few lines that are needed, one by one.
func parseLoad(r io.Reader, limit int64) ([]RankLoad, error) {
	lr := &io.LimitedReader{R: r, N: limit + 1}
	br := bufio.NewReaderSize(lr, 16<<10)
	var ranks []RankLoad
	for {
		part, err := br.ReadSlice('\n')
		whole := !errors.Is(err, bufio.ErrBufferFull)
		if whole && aboutLoad(part) {
			ranks = addLoad(ranks, string(part))
		}
		for errors.Is(err, bufio.ErrBufferFull) { // no line of ours is that long
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
	return ranks, nil
}

// aboutLoad tells early that a line is none of ours.
func aboutLoad(line []byte) bool {
	return bytes.HasPrefix(line, []byte("vllm:num_requests_")) || bytes.HasPrefix(line, []byte("vllm:kv_cache_usage_")) ||
		bytes.HasPrefix(line, []byte("vllm:cache_config_")) || bytes.HasPrefix(line, []byte("vllm:gpu_cache_usage_"))
}

// addLoad adds what a line says to its rank.
func addLoad(ranks []RankLoad, line string) []RankLoad {
	name, value, ok := sample(line)
	if !ok || value < 0 {
		return ranks
	}
	labels := line[len(name):]
	number, _ := strconv.Atoi(label(labels, "engine")) // none: the only one
	at, known := slices.BinarySearchFunc(ranks, number, func(r RankLoad, n int) int { return r.Rank - n })
	if !known {
		if number < 0 || number > 1<<20 || len(ranks) == maxRanks {
			return ranks
		}
		ranks = slices.Insert(ranks, at, RankLoad{Rank: number})
	}
	is := &ranks[at]
	switch name {
	case "vllm:num_requests_running":
		is.Running += value
	case "vllm:num_requests_waiting":
		is.Waiting += value
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
	case "vllm:cache_config_info":
		// "None" before the engine has measured what it has room for.
		is.Blocks, _ = strconv.ParseInt(label(labels, "num_gpu_blocks"), 10, 32)
		is.Block, _ = strconv.ParseInt(label(labels, "block_size"), 10, 32)
		if is.Blocks < 0 || is.Block < 0 {
			is.Blocks, is.Block = 0, 0
		}
	}
	return ranks
}

// label gives the value of a label of a line as it is written; those that are looked
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
