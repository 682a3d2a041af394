package testkit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// envOutside names an etcd program. Where it is set, every etcd of the tests is
// a process of that program instead of the embedded server: the same tests then
// say whether our code works with that version.
const envOutside = "PD_TEST_ETCD"

// outside is the program of envOutside, "" for the embedded server.
func outside() string { return os.Getenv(envOutside) }

// outsideCommand makes the command of one member. Its addresses are fixed
// before it starts, since the program does not report which ports it took.
func outsideCommand(t testing.TB, cfg *memberConfig) *exec.Cmd {
	t.Helper()
	name, peer := "test", FreePort(t)
	if cfg.Name != "" {
		name, peer = cfg.Name, cfg.Peer
	}
	cluster := name + "=http://" + peer
	if cfg.Cluster != "" {
		cluster = cfg.Cluster
	}
	args := []string{
		"--name", name, "--data-dir", cfg.Dir, "--initial-cluster", cluster,
		"--listen-client-urls", "http://" + cfg.Listen, "--advertise-client-urls", "http://" + cfg.Listen,
		"--listen-peer-urls", "http://" + peer, "--initial-advertise-peer-urls", "http://" + peer,
		"--logger", "zap", "--log-level", "error", "--bcrypt-cost", "4",
	}
	if cfg.QuotaBytes > 0 {
		args = append(args, "--quota-backend-bytes", strconv.FormatInt(cfg.QuotaBytes, 10))
	}
	if cfg.TokenTTL > 0 {
		args = append(args, "--auth-token-ttl", strconv.FormatUint(uint64(cfg.TokenTTL), 10))
	}
	cmd := exec.Command(outside(), args...)
	if runtime.GOARCH != "amd64" { // old versions want to be asked for it
		cmd.Env = append(os.Environ(), "ETCD_UNSUPPORTED_ARCH="+runtime.GOARCH)
	}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// outsideReady waits until the member at address serves and knows a leader.
func outsideReady(address string, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	cli, err := quietClient(address)
	if err != nil {
		return err
	}
	defer cli.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		call, done := context.WithTimeout(ctx, 5*time.Second)
		status, err := cli.Status(call, address)
		done()
		if err == nil && status.Leader != 0 {
			return nil
		}
		if err == nil {
			err = errors.New("no leader")
		}
		select {
		case <-ended:
			return fmt.Errorf("ended before it served; the last answer was: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("not ready within %s: %w", startTimeout, err)
		case <-tick.C:
		}
	}
}
