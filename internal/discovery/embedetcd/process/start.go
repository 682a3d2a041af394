package process

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
)

// child is one run of the etcd process.
type child struct {
	cmd      *exec.Cmd
	in       io.WriteCloser
	log      *logrus.Entry
	ready    chan struct{} // closed when it serves
	endpoint string        // to be read after ready
	done     chan struct{} // closed when it has exited; the fields below may be read after that
	failure  *failed       // its last report of a failure; may be nil
	err      error         // of the process
	last     prefixBuffer  // of its standard error
}

// start starts the process.
func start(cfg Config, log *logrus.Entry) (*child, error) {
	line, _ := json.Marshal(cfg) // cannot fail: strings
	c := &child{log: log, ready: make(chan struct{}), done: make(chan struct{})}
	c.cmd = exec.Command(executable())
	// The name in the list of processes.
	c.cmd.Args = []string{os.Args[0], "embedded-etcd", cfg.DataDir}
	c.cmd.Env = environment()
	c.cmd.Stderr = &c.last
	c.cmd.SysProcAttr = attributes()
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	go c.run(out, started)
	if err := <-started; err != nil {
		return nil, err
	}
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		c.log.WithError(err).Debug("cannot send the configuration to the process of etcd") // the reason is in its output
	}
	return c, nil
}

// run starts the process, receives its output and waits for its end. On Linux, Pdeathsig refers to
// the thread that started the process, so that thread waits for it.
func (c *child) run(out io.Reader, started chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
	raisePriority()
	err := c.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	lines := bufio.NewReaderSize(out, maxLine)
	for err == nil || errors.Is(err, bufio.ErrBufferFull) {
		var line []byte
		if line, err = lines.ReadSlice('\n'); err == nil {
			c.receive(line)
		}
	}
	c.err = c.cmd.Wait()
	_ = c.in.Close() // of a process that has ended
	if trace := strings.TrimSpace(string(c.last.b)); trace != "" {
		c.log.Debug("stderr of etcd: " + trace)
	}
	close(c.done)
}

// receive processes one line of the child's standard output.
func (c *child) receive(line []byte) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		c.log.Debug("output of etcd: " + strings.TrimSpace(string(line)))
		return
	}
	switch {
	case m.Log != nil:
		level, err := logrus.ParseLevel(m.Log.Level)
		if err != nil {
			level = logrus.WarnLevel
		}
		c.log.WithFields(m.Log.Fields).Log(level, m.Log.Text)
	case m.Failed != nil:
		c.failure = m.Failed
	case m.Ready != "":
		c.endpoint = m.Ready
		close(c.ready)
	}
}

// reason returns why the process has exited.
func (c *child) reason() string {
	if c.failure != nil {
		return c.failure.Text
	}
	for line := range strings.Lines(string(c.last.b)) {
		for _, sign := range []string{"panic: ", "fatal error: ", "unexpected fault address", "runtime: out of memory"} {
			if strings.HasPrefix(line, sign) {
				return strings.TrimSpace(line)
			}
		}
	}
	if c.err != nil {
		return c.err.Error()
	}
	return "its process has ended"
}

// close ends the process, with force after limit, and waits for it.
func (c *child) close(limit time.Duration) {
	_ = c.in.Close()                                                   // it may have ended already
	kill := time.AfterFunc(limit, func() { _ = c.cmd.Process.Kill() }) // it may have ended
	defer kill.Stop()
	<-c.done
}

// environment returns the environment of the child, without the keys and settings of the proxy.
func environment() []string {
	env := []string{marker + "=1"}
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "TZ", "GODEBUG", "GOTRACEBACK", "GORACE", "GOCOVERDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}
