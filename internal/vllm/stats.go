package vllm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// Stats is the little of /metrics that is needed, summed over the engines
// (data-parallel ranks) and models of one server.
type Stats struct {
	Running  float64 // requests being computed
	Waiting  float64 // requests queued
	Finished float64 // requests ended for any reason since the process started
	// KVCacheUsage is the mean share of KV blocks in use, 0..1. On a prefill
	// instance blocks pinned for decode count although nothing runs.
	KVCacheUsage float64
	// StartedAt is process_start_time_seconds; zero when the server does not tell
	// (it does not when it runs several API processes).
	StartedAt time.Time
	// Ranks is how many data-parallel ranks answer behind the address, 0 if not told.
	Ranks int
	// NIXL reports whether the engine hands over by NIXL: its metrics are there from the
	// start of such an engine, also where NIXL is a part of a MultiConnector.
	NIXL bool
	// Complete reports whether both Running and Waiting were in the answer. Without
	// it a zero means "unknown", not "idle".
	Complete bool
}

// Idle reports whether the engine surely has nothing to do.
func (s Stats) Idle() bool { return s.Complete && s.Running == 0 && s.Waiting == 0 }

// Stats asks GET /metrics. The path needs no key.
func (c *Client) Stats(ctx context.Context, base string) (Stats, error) {
	var s Stats
	err := c.get(ctx, base, "/metrics", false, func(r io.Reader) error {
		var err error
		s, err = parseStats(r, maxMetricsBytes)
		return err
	})
	if err != nil {
		return Stats{}, err
	}
	return s, nil
}

// parseStats reads the Prometheus text format line by line, without holding the
// whole of it. Lines it cannot read are skipped: they are none of ours.
func parseStats(r io.Reader, limit int64) (Stats, error) {
	var (
		s                Stats
		running, waiting bool
		usageSum         float64
		usageN           int
		oldSum           float64
		oldN             int
	)
	lr := &io.LimitedReader{R: r, N: limit + 1}
	br := bufio.NewReaderSize(lr, 16<<10)
	for {
		line, err := readLine(br)
		if name, value, ok := sample(line); ok {
			switch name {
			case "vllm:nixl_num_failed_transfers_total", "vllm:nixl_xfer_time_seconds_count":
				s.NIXL = true
			case "vllm:num_requests_running":
				s.Running += value
				s.Ranks++
				running = true
			case "vllm:num_requests_waiting":
				s.Waiting += value
				waiting = true
			case "vllm:request_success_total":
				s.Finished += value
			case "vllm:kv_cache_usage_perc":
				usageSum += value
				usageN++
			case "vllm:gpu_cache_usage_perc": // the name before 0.10
				oldSum += value
				oldN++
			case "process_start_time_seconds":
				if value > 0 && value < 1e11 {
					sec, frac := math.Modf(value)
					s.StartedAt = time.Unix(int64(sec), int64(math.Round(frac*1e3))*int64(time.Millisecond)).UTC()
				}
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Stats{}, err
		}
	}
	if lr.N <= 0 {
		return Stats{}, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	}
	if usageN == 0 {
		usageSum, usageN = oldSum, oldN // a transition release shows both names
	}
	if usageN > 0 {
		s.KVCacheUsage = usageSum / float64(usageN)
	}
	s.Complete = running && waiting
	return s, nil
}

// readLine returns the next line, or only its beginning when it is longer than
// the reader's buffer: the names we look for are short.
func readLine(br *bufio.Reader) (string, error) {
	part, err := br.ReadSlice('\n')
	line := ""
	if wanted(part) {
		line = string(part)
	}
	for errors.Is(err, bufio.ErrBufferFull) {
		line = "" // no sample of ours is that long
		_, err = br.ReadSlice('\n')
	}
	return line, err
}

// wanted tells early that a line is none of ours: of the thousands of an
// engine with many adapters we look at a few.
func wanted(line []byte) bool {
	line = bytes.TrimLeft(line, " \t")
	return bytes.HasPrefix(line, []byte("vllm:num_requests_")) || bytes.HasPrefix(line, []byte("vllm:request_success_")) ||
		bytes.HasPrefix(line, []byte("vllm:kv_cache_")) || bytes.HasPrefix(line, []byte("vllm:gpu_cache_")) ||
		bytes.HasPrefix(line, []byte("vllm:nixl_")) || bytes.HasPrefix(line, []byte("process_start_"))
}

// sample splits `name{labels} value [timestamp]`.
func sample(line string) (name string, value float64, ok bool) {
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' {
		return "", 0, false
	}
	end := strings.IndexAny(line, "{ \t")
	if end <= 0 {
		return "", 0, false
	}
	name, rest := line[:end], line[end:]
	if rest[0] == '{' {
		end := labelsEnd(rest)
		if end < 0 {
			return "", 0, false
		}
		rest = rest[end:]
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 || len(fields) > 2 {
		return "", 0, false
	}
	v, err := strconv.ParseFloat(fields[0], 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return "", 0, false
	}
	return name, v, true
}

// labelsEnd is the index after the closing brace; a brace inside a quoted label
// value (model names are free text) does not close it.
func labelsEnd(s string) int {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case s[i] == '}' && !quoted:
			return i + 1
		}
	}
	return -1
}
