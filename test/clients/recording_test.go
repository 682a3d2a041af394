package clients_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// recording is the sequence of requests of one tool, from a file of testdata:
//
//	# a comment
//	tool: its name             (version and client alike)
//	=== name of the exchange
//	> a line of the request; an empty one ends the header
//	| apart                    the tool sends what follows in a separate write
//	? a requirement of the tool on the response
//
// {host} is the server's host:port, {sp} a blank at the end of a line.
type recording struct {
	tool, version, client string
	exchanges             []exchange
}

type exchange struct {
	name         string
	method, path string
	head, body   string
	apart        bool
	require      []string
}

var errRecording = errors.New("not a recording")

func readRecording(file string) (*recording, error) {
	raw, err := os.ReadFile(file) //nolint:gosec // a name of testdata
	if err != nil {
		return nil, err
	}
	r := &recording{}
	var x *exchange
	inBody := false
	for n, line := range strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n") {
		bad := func(why string) error { return fmt.Errorf("%w: %s:%d: %s", errRecording, file, n+1, why) }
		switch mark, rest, _ := strings.Cut(line, " "); {
		case line == "" || mark == "#":
		case mark == "===":
			r.exchanges = append(r.exchanges, exchange{name: rest})
			x, inBody = &r.exchanges[len(r.exchanges)-1], false
		case x == nil:
			name, value, ok := strings.Cut(line, ": ")
			field := map[string]*string{"tool": &r.tool, "version": &r.version, "client": &r.client}[name]
			if !ok || field == nil {
				return nil, bad("a line before the first exchange")
			}
			*field = value
		case mark == "?":
			x.require = append(x.require, rest)
		case line == "| apart":
			x.apart = true
		case mark != ">":
			return nil, bad("a line without a mark")
		case inBody && x.body != "":
			return nil, bad("a body of two lines")
		case inBody:
			x.body = rest
		case rest == "":
			inBody = true
		case x.head == "":
			var ok bool
			if x.method, rest, ok = strings.Cut(rest, " "); !ok {
				return nil, bad("no request line")
			}
			x.path, _, _ = strings.Cut(rest, " ")
			x.head = x.method + " " + rest + "\r\n"
		default:
			x.head += strings.ReplaceAll(rest, "{sp}", " ") + "\r\n"
		}
	}
	if r.tool == "" || r.version == "" || r.client == "" || len(r.exchanges) == 0 {
		return nil, fmt.Errorf("%w: %s has no tool, version, client or exchange", errRecording, file)
	}
	for _, x := range r.exchanges {
		length := fmt.Sprintf("\r\nContent-Length: %d\r\n", len(x.body))
		if said := strings.Contains(x.head, "\r\nContent-Length: "); len(x.require) == 0 || (said || x.body != "") && !strings.Contains(x.head, length) {
			return nil, fmt.Errorf("%w: %s: %q requires nothing, or its length is wrong", errRecording, file, x.name)
		}
	}
	return r, nil
}

func recordings(t *testing.T) []*recording {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	require.True(t, err == nil && len(files) >= 4, "%d recordings, %v", len(files), err)
	var out []*recording
	for _, f := range files {
		r, err := readRecording(f)
		require.NoError(t, err)
		out = append(out, r)
	}
	return out
}

// TestRecordedConversations checks that all recorded requests are answered as the tools require.
func TestRecordedConversations(t *testing.T) {
	t.Parallel()
	for _, rec := range recordings(t) {
		t.Run(rec.tool, func(t *testing.T) {
			t.Parallel()
			t.Logf("%s %s (%s)", rec.tool, rec.version, rec.client)
			// Engines with a key: tools that send none use the proxy's.
			r := start(t, setup{
				proxyArgs: []string{"--engine-api-key", "sk-local"}, engine: func(o *fakevllm.Options) { o.APIKey = "sk-local" },
			})
			r.converse(t, rec)
			r.strict()
			assert.EqualValues(t, 0, sum(r.engines(), aborted), "requests were aborted")
		})
	}
}

// converse sends the recording over one connection and reconnects when it is closed.
func (r *rig) converse(t *testing.T, rec *recording) {
	t.Helper()
	var w *wire
	defer func() {
		if w != nil {
			w.Close()
		}
	}()
	for _, x := range rec.exchanges {
		if w == nil {
			var err error
			w, err = dial(t.Context(), r.proxy.Address)
			require.NoError(t, err)
		}
		rep, err := w.ask(x, r.proxy.Address)
		require.NoError(t, err, x.name)
		if !rep.whole {
			w.Close()
			w = nil
		}
		for _, what := range x.require {
			if err := rep.meets(t, x, what); err != nil {
				t.Errorf("%s\nrequires %s: %v\nanswer: %d %v\n%.2000s", x.name, what, err, rep.status, rep.header, rep.body())
			}
		}
	}
}

func (w *wire) ask(x exchange, host string) (*reply, error) {
	head, body := []byte(strings.ReplaceAll(x.head, "{host}", host)+"\r\n"), []byte(x.body)
	parts := [][]byte{append(head, body...)}
	if x.apart {
		parts = [][]byte{head, body}
	}
	if err := w.send(parts...); err != nil {
		return nil, err
	}
	var enough func([]byte) bool
	for _, what := range x.require {
		if what == "reader guidellm" { // this tool stops reading here
			enough = func(chunk []byte) bool { return bytes.Contains(chunk, []byte("data: [DONE]")) }
		}
	}
	return w.receive(x.method == "HEAD", enough)
}

// meets checks one requirement on the response.
func (r *reply) meets(t *testing.T, x exchange, what string) error {
	t.Helper()
	kind, rest, _ := strings.Cut(what, " ")
	name, want, exact := strings.Cut(rest, " = ")
	switch kind {
	case "status":
		if rest != strconv.Itoa(r.status) {
			return fmt.Errorf("status %d", r.status)
		}
	case "header":
		if got := r.header.Get(name); got == "" || exact && got != want {
			return fmt.Errorf("%s is %q", name, got)
		}
	case "text":
		text, err := r.text()
		if err != nil {
			return err
		}
		if !bytes.Contains(text, []byte(rest)) {
			return errors.New("it is absent")
		}
	case "json":
		got, err := lookup(r.body(), name)
		if err != nil {
			return err
		}
		if exact && string(got) != want {
			return fmt.Errorf("it is %s", got)
		}
	case "reader":
		reader, args, _ := strings.Cut(rest, " ")
		return r.readAs(reader, strings.Fields(args), expected(t, x.path, []byte(x.body)))
	default:
		return fmt.Errorf("%w: %q", errRecording, kind)
	}
	return nil
}

var errAbsent = errors.New("absent or null")

// lookup returns the value at a path of names and indices.
func lookup(doc []byte, path string) (json.RawMessage, error) {
	at := json.RawMessage(doc)
	for name := range strings.SplitSeq(path, ".") {
		if i, err := strconv.Atoi(name); err == nil {
			var list []json.RawMessage
			if err := json.Unmarshal(at, &list); err != nil || i >= len(list) {
				return nil, fmt.Errorf("%w: %s", errAbsent, name)
			}
			at = list[i]
			continue
		}
		var object map[string]json.RawMessage
		if err := json.Unmarshal(at, &object); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", errAbsent, name, err)
		}
		at = object[name]
	}
	if len(at) == 0 || string(at) == "null" {
		return nil, errAbsent
	}
	return at, nil
}
