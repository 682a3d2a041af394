package testkit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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

var errNotWell = errors.New("it says that it is not healthy")

// outsideReady waits until the member at address serves and knows a leader.
func outsideReady(address string, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := healthy(ctx, client, address)
		if err == nil {
			return nil
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

func healthy(ctx context.Context, client *http.Client, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/health", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer struct {
		Health string `json:"health"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Health != "true" {
		return errNotWell
	}
	return nil
}
