package handover

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Fetched is what came of a question for blocks.
type Fetched struct {
	Prompt uint64
	Err    error
}

// Fetch asks the side channel of a prefill for blocks by one line:
//
//	PULL =<transfer id, query-escaped> ...
//	OK <hash of the prompt that was computed> | ERR <reason>
//
// A connection that fails is no failure until ctx ends: ZMQ connects again and again.
func Fetch(ctx context.Context, addr, line string) Fetched {
	got, err := pull(ctx, addr, line)
	if err != nil {
		<-ctx.Done()
		return Fetched{Err: fmt.Errorf("transfer failed: %w", err)}
	}
	return got
}

// pull asks once; the error is that of a connection, not of the transfer.
func pull(ctx context.Context, addr, question string) (Fetched, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return Fetched{}, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := fmt.Fprintln(conn, question); err != nil {
		return Fetched{}, err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return Fetched{}, err
	}
	line = strings.TrimSpace(line)
	if hash, ok := strings.CutPrefix(line, "OK "); ok {
		prompt, err := strconv.ParseUint(hash, 16, 64)
		return Fetched{Prompt: prompt, Err: err}, nil
	}
	return Fetched{Err: errors.New(strings.TrimPrefix(line, "ERR "))}, nil
}
