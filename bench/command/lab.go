package command

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/bench/machine"
	"github.com/pdmesh/pdmesh/bench/suite"
	"github.com/pdmesh/pdmesh/bench/target"
	"github.com/pdmesh/pdmesh/internal/cli"
)

// labFlags are what run and soak have in common.
type labFlags struct {
	bin, proxy, nginx, router, engine, connector string
	pin                                          string
	proxyFlags                                   []string
	seed                                         uint64
	keep                                         bool
}

func (f *labFlags) register(fs *pflag.FlagSet) {
	fs.StringVar(&f.bin, "bin", "bin", "directory with our programs")
	fs.StringVar(&f.proxy, "proxy", "", "another build of our proxy (default proxy in --bin)")
	fs.StringVar(&f.nginx, "nginx", "nginx", "nginx's program")
	fs.StringVar(&f.router, "vllm-router", "vllm-router", "vllm-router's program")
	fs.StringVar(&f.engine, "engine", suite.FastEngine, "engine behind the targets: fast, or strict (fakevllm, checks more and costs more: for right and wrong, not for figures)")
	fs.StringVar(&f.connector, "connector", "nixl", "KV transfer: nixl or plain")
	fs.StringVar(&f.pin, "pin", "auto", "cores as TARGET,HARNESS (0,1); auto takes them where there are two; off")
	fs.StringArrayVar(&f.proxyFlags, "proxy-flags", nil, "flags for our proxy in addition, repeated or separated by blanks")
	fs.Uint64Var(&f.seed, "seed", 1, "seed of all chance")
	fs.BoolVar(&f.keep, "keep-logs", false, "keep logs and generated configuration, and say where")
}

func (f *labFlags) check() error {
	if f.engine != suite.FastEngine && f.engine != suite.StrictEngine {
		return cli.Wrongf("--engine %q: use fast or strict", f.engine)
	}
	if f.connector != "nixl" && f.connector != "plain" {
		return cli.Wrongf("--connector %q: use nixl or plain", f.connector)
	}
	return nil
}

// cores reports what to pin targets and ourselves to; empty for nothing.
func (f *labFlags) cores() (targets, harness string, err error) {
	switch f.pin {
	case "off":
		return "", "", nil
	case "auto":
		// Ourselves we may be pinned already, by pinned below.
		if machine.Describe().Cores < 2 {
			return "", "", nil
		}
		return "0", "1", nil
	}
	var a, b int
	if _, err := fmt.Sscanf(f.pin, "%d,%d", &a, &b); err != nil {
		return "", "", cli.Wrongf("--pin %q: use auto, off, or two cores as 0,1", f.pin)
	}
	return fmt.Sprint(a), fmt.Sprint(b), nil
}

// pinnedMark tells the program that it has pinned itself.
const pinnedMark = "PD_TEST_BENCH_PINNED"

// pinSelf starts this program again, pinned to the harness' core, in place of
// itself; then it returns nil without doing anything.
func pinSelf(core string) error {
	if core == "" || os.Getenv(pinnedMark) != "" {
		return nil
	}
	taskset, err := exec.LookPath("taskset")
	if err != nil {
		return fmt.Errorf("pinning needs taskset (util-linux): %w; or run with --pin=off, and the figures mean little", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	argv := append([]string{"taskset", "-c", core, self}, os.Args[1:]...)
	return syscall.Exec(taskset, argv, append(os.Environ(), pinnedMark+"=1"))
}

// open makes the lab.
func (f *labFlags) open() (lab *target.Lab, files int, pinned bool, err error) {
	if err := f.check(); err != nil {
		return nil, 0, false, err
	}
	targets, harness, err := f.cores()
	if err != nil {
		return nil, 0, false, err
	}
	if err := pinSelf(harness); err != nil {
		return nil, 0, false, err
	}
	if harness != "" {
		runtime.GOMAXPROCS(1)
	}
	files = machine.RaiseFiles()
	self, err := os.Executable()
	if err != nil {
		return nil, 0, false, err
	}
	lab, err = target.NewLab(target.Options{
		BinDir: f.bin, Self: self, TargetCore: targets, Files: files, KeepLogs: f.keep,
	})
	return lab, files, targets != "", err
}
