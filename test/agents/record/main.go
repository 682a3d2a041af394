// Command record runs a coding agent with the simulated engine and records its requests and their
// responses, with texts replaced by filler (package agents). scripts/record-agents.sh runs it:
//
//	record -agent PACKAGE -version V -turns FILE -out FILE -- command of the agent
//
// {url} in the command and in its environment is replaced by the address to use.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/test/agents"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run() error {
	var r agents.Recording
	flag.StringVar(&r.Agent, "agent", "", "package of the agent")
	flag.StringVar(&r.Version, "version", "", "its version")
	flag.StringVar(&r.Command, "command", "", "what to write down as its command")
	turns := flag.String("turns", "", "file with what the model says")
	out := flag.String("out", "", "file to write")
	limit := flag.Duration("limit", 2*time.Minute, "how long the agent may take")
	flag.Parse()
	file, err := os.Open(*turns)
	if err != nil {
		return err
	}
	defer file.Close()
	if r.Turns, err = fakevllm.ReadTurns(file); err != nil {
		return err
	}
	for _, t := range r.Turns { // in the form that a recording stores
		for i := range t.Calls {
			var b bytes.Buffer
			if err := json.Compact(&b, t.Calls[i].Input); err != nil {
				return err
			}
			t.Calls[i].Input = b.Bytes()
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), *limit)
	defer cancel()
	if err := record(ctx, &r, flag.Args()); err != nil {
		return err
	}
	if len(r.Exchanges) != len(r.Turns) {
		return fmt.Errorf("%d requests, but %d scripted turns", len(r.Exchanges), len(r.Turns))
	}
	filled, err := r.Filled(ctx)
	if err != nil {
		return err
	}
	text, err := filled.Format()
	if err != nil {
		return err
	}
	return os.WriteFile(*out, text, 0o644) //nolint:gosec // it is to be committed
}

// record runs the agent and returns the recording.
func record(ctx context.Context, r *agents.Recording, command []string) error {
	if len(command) == 0 {
		return errors.New("missing command of the agent")
	}
	s, err := fakevllm.Start(ctx, fakevllm.Options{Models: []string{"m"}, PromptTokensDetails: true, Turns: r.Turns})
	if err != nil {
		return err
	}
	defer s.Close()
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	t := &tap{engine: s.URL(), r: r}
	server := &http.Server{Handler: t, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ln) }()
	url := "http://" + ln.Addr().String()
	at := func(list []string) (out []string) {
		for _, s := range list {
			out = append(out, strings.ReplaceAll(s, "{url}", url))
		}
		return out
	}
	command = at(command)
	cmd := exec.CommandContext(ctx, command[0], command[1:]...) //nolint:gosec // runs the given command
	cmd.Env = at(os.Environ())
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	err = errors.Join(cmd.Run(), server.Close())
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(err, t.err)
}

// tap forwards requests to the engine and records them.
type tap struct {
	engine string

	mu  sync.Mutex // guards the fields below
	r   *agents.Recording
	err error
}

func (t *tap) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if err := t.pass(w, q); err != nil {
		t.mu.Lock()
		t.err = errors.Join(t.err, fmt.Errorf("%s %s: %w", q.Method, q.URL, err))
		t.mu.Unlock()
	}
}

func (t *tap) pass(w http.ResponseWriter, q *http.Request) error {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return err
	}
	out, err := http.NewRequestWithContext(q.Context(), q.Method, t.engine+q.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	out.Header = q.Header.Clone()
	out.Header.Del("Accept-Encoding") // the engine never encodes its responses
	resp, err := http.DefaultTransport.RoundTrip(out)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.r.Exchanges = append(t.r.Exchanges, agents.Exchange{
		Method: q.Method, Target: q.URL.RequestURI(), Header: q.Header.Clone(), Body: body, Status: resp.StatusCode, Events: agents.Events(answer),
	})
	t.mu.Unlock()
	maps.Copy(w.Header(), resp.Header)
	w.WriteHeader(resp.StatusCode)
	_, err = w.Write(answer)
	return err
}
