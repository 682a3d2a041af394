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

	"github.com/pdmesh/pdmesh/internal/embedetcd"
	"github.com/pdmesh/pdmesh/internal/logging"
)

// marker in the environment makes the program an etcd.
const marker = "PDMESH_EMBEDDED_ETCD"

// MaybeMain is called first in main. In the child process of a Host it runs the
// etcd and does not return; else it does nothing.
func MaybeMain() {
	if os.Getenv(marker) != "" {
		os.Exit(serve(os.Stdin, os.Stdout))
	}
}

// flushTime is how long the last lines may take.
const flushTime = 2 * time.Second

// serve runs an etcd until in ends.
func serve(in io.Reader, out io.Writer) int {
	// The proxy drains its requests after these signals, which a terminal and
	// systemd send to both, and needs its etcd until then.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	// A proxy that is stopped for a while reads nothing, and etcd must go on.
	queue := logging.NewQueue(out, func(int) {})
	say := func(m message) {
		line, err := json.Marshal(m)
		if err == nil {
			_, _ = queue.Write(append(line, '\n')) // whoever should read it is gone
		}
	}
	end := func(err error) int {
		say(message{Failed: failure(err)})
		queue.Flush(flushTime)
		return 1
	}
	defer queue.Flush(flushTime)
	lines := bufio.NewReader(in)
	var s settings
	if first, err := lines.ReadBytes('\n'); err != nil || json.Unmarshal(first, &s) != nil {
		return end(fmt.Errorf("the configuration cannot be read: %w", err))
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, lines) // any end is the end
		cancel()
	}()
	log := logrus.New()
	log.SetOutput(queue)
	log.SetFormatter(lineFormatter{})
	if level, err := logrus.ParseLevel(s.LogLevel); err == nil {
		log.SetLevel(level)
	}
	var once sync.Once
	server, err := embedetcd.Start(ctx, embedetcd.Config{
		ListenClient: s.ListenClient, DataDir: s.DataDir, Prefix: s.Prefix, Gateway: s.Gateway, TLS: s.TLS, Log: log,
		Fatal: func(why string) {
			// Several goroutines may come here; the first has the reason.
			once.Do(func() {
				os.Exit(end(errors.New(why)))
			})
			select {}
		},
	})
	switch {
	case ctx.Err() != nil:
		if err == nil {
			server.Close()
		}
		return 0
	case err != nil:
		return end(err)
	}
	say(message{Ready: &ready{Endpoint: server.Endpoint()}})
	select {
	case <-ctx.Done():
		server.Close()
		return 0
	case err := <-server.Err():
		server.Close()
		return end(err)
	}
}
