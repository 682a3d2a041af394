package wrap_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/agent/wrap"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

// envPlay makes the test binary a child process; its value is the kind.
const envPlay = "PDMESH_TEST_WRAP_PLAY"

const patience = 30 * time.Second

func TestMain(m *testing.M) {
	if what := os.Getenv(envPlay); what != "" {
		os.Exit(play(what))
	}
	leak.Main(m)
}

// play runs a child process of a kind.
func play(what string) int {
	name, arg, _ := strings.Cut(what, ":")
	never := make(chan os.Signal, 1)
	switch name {
	case "exit":
		n, _ := strconv.Atoi(arg)
		fmt.Println("out")
		fmt.Fprintln(os.Stderr, "err")
		return n
	case "wait": // until TERM or INT, then prints the signal
		signal.Notify(never, syscall.SIGTERM, syscall.SIGINT)
		fmt.Println("ready", os.Getpid())
		fmt.Println("got", <-never)
		return 7
	case "plain": // the default reaction to signals
		fmt.Println("ready", os.Getpid())
		time.Sleep(time.Hour) // without cgo the runtime reports select {} as a deadlock
	case "stubborn":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		fmt.Println("ready", os.Getpid())
		time.Sleep(time.Hour)
	case "parent": // starts another child, then ends or waits
		child, then, _ := strings.Cut(arg, ":")
		cmd := again(child)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil || cmd.Start() != nil {
			return 1
		}
		line, _ := bufio.NewReader(out).ReadString('\n') // it has started
		fmt.Print(line)
		if then == "leaves" {
			return 3
		}
		_ = cmd.Wait()
		return 0
	case "adopter": // starts a reaper, and a child whose child is orphaned
		return adopter(arg)
	case "dying": // starts a child that may die with it
		p, err := wrap.Start(wrap.Options{Argv: []string{os.Args[0]}, Env: append(os.Environ(), envPlay+"=wait"), Stdout: os.Stdout, DieWith: arg == "with", Log: silent()})
		if err != nil {
			return 1
		}
		fmt.Println("child", p.PID())
		<-p.Done()
		return 0
	}
	return 99
}

func adopter(arg string) int {
	if err := wrap.Adopt(); err != nil {
		fmt.Println(err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := wrap.NewReaper()
	var work sync.WaitGroup
	work.Go(func() { r.Run(ctx) })
	p, err := wrap.Start(wrap.Options{
		Argv: []string{os.Args[0]}, Env: append(os.Environ(), envPlay+"=parent:"+arg+":leaves"), Stdout: os.Stdout, Reaper: r, Log: silent(),
	})
	if err != nil {
		return 1
	}
	<-p.Done()
	fmt.Println("exit", p.Exit().Status(), "ppid", os.Getpid())
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	cancel()
	work.Wait()
	return 0
}

func again(what string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envPlay+"="+what)
	return cmd
}

func silent() logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

type buffer struct{ testkit.Buffer }

// awaits waits for a line that starts with begins, and returns its second word as a number, if it is one.
func (b *buffer) awaits(t *testing.T, begins string) int {
	t.Helper()
	n := 0
	testkit.Eventually(t, patience, func() error {
		for line := range strings.Lines(b.String()) {
			if rest, ok := strings.CutPrefix(strings.TrimSpace(line), begins); ok {
				n, _ = strconv.Atoi(strings.TrimSpace(rest))
				return nil
			}
		}
		return fmt.Errorf("no line %q in %q", begins, b.String())
	})
	return n
}

// start runs a child of a kind, and stops it when the test ends.
func start(t *testing.T, what string, o wrap.Options) (*wrap.Process, *buffer) {
	t.Helper()
	out := &buffer{}
	o.Argv, o.Env = []string{os.Args[0]}, append(os.Environ(), envPlay+"="+what)
	o.Stdout, o.Stderr, o.Log = out, out, silent()
	p, err := wrap.Start(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = p.SignalGroup(syscall.SIGKILL)
		<-p.Done()
	})
	return p, out
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(raw), ") ")
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}
