package process

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/discovery/embedetcd"
	"github.com/pdmesh/pdmesh/internal/observe/logging"
)

// marker is the environment variable that makes the program run as an etcd.
const marker = "PDMESH_EMBEDDED_ETCD"

// MaybeMain runs the etcd and does not return if this is the child process of a Host; otherwise
// it returns at once. Call it first in main.
func MaybeMain() {
	if os.Getenv(marker) != "" {
		os.Exit(serve(os.Stdin, os.Stdout))
	}
}

// flushTime bounds the wait until the last lines are written.
const flushTime = 2 * time.Second

// reports sends messages about the etcd to the Host, one per line.
type reports struct {
	queue *logging.Queue
	once  sync.Once // of fatal
}

func (r *reports) send(m message) {
	line, _ := json.Marshal(m)               // cannot fail: strings
	_, _ = r.queue.Write(append(line, '\n')) // fails if the reader has ended
}

// failed reports the reason why etcd does not run, and returns the exit code.
func (r *reports) failed(err error) int {
	r.send(message{Failed: failure(err)})
	r.queue.Flush(flushTime)
	return 1
}

// fatal ends the process. Several goroutines may call it; the first one reports the reason.
func (r *reports) fatal(why string) {
	r.once.Do(func() {
		os.Exit(r.failed(errors.New(why)))
	})
	select {}
}

// log returns a logger that writes its lines as messages, too.
func (r *reports) log(level string) *logrus.Logger {
	log := logrus.New()
	log.SetOutput(r.queue)
	log.SetFormatter(lineFormatter{})
	if level, err := logrus.ParseLevel(level); err == nil {
		log.SetLevel(level)
	}
	return log
}

// serve runs an etcd until in ends.
func serve(in io.Reader, out io.Writer) int {
	// A terminal and systemd send these signals to both processes. The proxy then drains
	// its requests, and needs its etcd until that is done.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	// etcd must continue while a stopped proxy does not read its output.
	r := &reports{queue: logging.NewQueue(out, func(int) {})}
	defer r.queue.Flush(flushTime)
	lines := bufio.NewReader(in)
	var s Config
	if first, err := lines.ReadBytes('\n'); err != nil || json.Unmarshal(first, &s) != nil {
		return r.failed(fmt.Errorf("the configuration cannot be read: %w", err))
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, lines) // an error counts as the end
		cancel()
	}()
	server, err := embedetcd.Start(ctx, embedetcd.Config{
		ListenClient: s.ListenClient, DataDir: s.DataDir, Prefix: s.Prefix, Gateway: s.Gateway, TLS: s.TLS,
		Log: r.log(s.LogLevel), Fatal: r.fatal,
	})
	switch {
	case ctx.Err() != nil:
		if err == nil {
			server.Close()
		}
		return 0
	case err != nil:
		return r.failed(err)
	}
	r.send(message{Ready: server.Endpoint()})
	select {
	case <-ctx.Done():
		server.Close()
		return 0
	case err := <-server.Err():
		server.Close()
		return r.failed(err)
	}
}
