package wire_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/pdmesh/pdmesh/bench/wire"
)

func TestMessages(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, in, body string
		want           wire.Head
	}{
		{"request with a length", "POST /x HTTP/1.1\r\nHost: a\r\ncontent-length:  5 \r\n\r\nhello", "hello", wire.Head{Length: 5}},
		{"request in chunks", "POST /x HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nhel\r\n02;x=y\r\nlo\r\n0\r\nA: b\r\n\r\n", "hello", wire.Head{Length: -1, Chunked: true}},
		{"request without a body", "GET / HTTP/1.1\r\nConnection: close\r\nExpect: 100-continue\r\n\r\n", "", wire.Head{Length: -1, Close: true, Continue: true}},
		{"response with a length", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "hi", wire.Head{Status: 200, Length: 2}},
		{"response until the end", "HTTP/1.0 502 Bad Gateway\r\nServer: x\r\n\r\nsorry", "sorry", wire.Head{Status: 502, Length: -1, Close: true}},
		{"response in chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nA\r\n0123456789\r\n1\r\n!\r\n0\r\n\r\n", "0123456789!", wire.Head{Status: 200, Length: -1, Chunked: true}},
		{"a long head", "GET / HTTP/1.1\r\nX: " + strings.Repeat("y", 4000) + "\r\n\r\n", "", wire.Head{Length: -1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, src := range []io.Reader{strings.NewReader(tt.in), iotest.OneByteReader(strings.NewReader(tt.in))} {
				r := wire.NewReader(src, 32)
				h, err := r.Head()
				if err != nil {
					t.Fatal(err)
				}
				if first, _, _ := strings.Cut(tt.in, "\r\n"); string(h.Line) != first {
					t.Errorf("first line %q, want %q", h.Line, first)
				}
				tt.want.Line, h.Line = nil, nil
				if h.Status != tt.want.Status || h.Length != tt.want.Length || h.Chunked != tt.want.Chunked ||
					h.Close != tt.want.Close || h.Continue != tt.want.Continue {
					t.Errorf("head %+v, want %+v", h, tt.want)
				}
				var body strings.Builder
				if err := r.Body(h, func(p []byte) error { body.Write(p); return nil }); err != nil {
					t.Fatal(err)
				}
				if body.String() != tt.body {
					t.Errorf("body %q, want %q", body.String(), tt.body)
				}
			}
		})
	}
}

func TestSeveralOnOneConnection(t *testing.T) {
	t.Parallel()
	one := "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"
	r := wire.NewReader(strings.NewReader(one+one), 64)
	for range 2 {
		h, err := r.Head()
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, h.Length)
		if err := r.Full(got); err != nil || string(got) != "abc" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if _, err := r.Head(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v, want io.EOF", err)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, in string
		want     error
	}{
		{"two lengths", "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", wire.ErrFraming},
		{"length and chunks", "GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", wire.ErrFraming},
		{"a length that is none", "GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", wire.ErrFraming},
		{"another encoding", "GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", wire.ErrFraming},
		{"no colon", "GET / HTTP/1.1\r\nHost\r\n\r\n", wire.ErrFraming},
		{"no status", "HTTP/1.1 OK\r\n\r\n", wire.ErrFraming},
		{"an endless head", "GET / HTTP/1.1\r\nX: " + strings.Repeat("y", 20<<10), wire.ErrFraming},
		{"cut in the head", "GET / HT", io.ErrUnexpectedEOF},
		{"cut in the body", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", io.ErrUnexpectedEOF},
		{"cut between chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", io.ErrUnexpectedEOF},
		{"a chunk longer than it says", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", wire.ErrFraming},
		{"a bare line feed", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n", wire.ErrFraming},
		{"a size that is none", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n0\r\n\r\n", wire.ErrFraming},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := wire.NewReader(strings.NewReader(tt.in), 64)
			h, err := r.Head()
			if err == nil {
				err = r.Body(h, func([]byte) error { return nil })
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}
