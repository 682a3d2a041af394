package local

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// checkTimeout bounds one check.
const checkTimeout = 5 * time.Second

// health runs the health check of a running process, as the compose file says
// it. What etcdctl and the proxy ask over HTTP is asked here directly: etcdctl
// need not be installed.
func (a *app) health(ctx context.Context, p *started) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	switch {
	case len(p.Check) == 0:
		return nil
	case p.Check[0] == "etcdctl":
		for _, arg := range p.Check {
			if url, ok := strings.CutPrefix(arg, "--endpoints="); ok {
				return ask(ctx, url+"/health")
			}
		}
		return fmt.Errorf("its check names no --endpoints: %s", strings.Join(p.Check, " "))
	case slices.Equal(p.Check, []string{"proxy", "health"}):
		if len(p.Listens) != 1 {
			return fmt.Errorf("it listens at %v, not at one address", p.Listens)
		}
		return ask(ctx, "http://"+p.Listens[0]+"/readyz")
	}
	// The programs are beside the one that runs.
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(p.Args[0]), p.Check[0]), p.Check[1:]...)
	cmd.Env = a.environment(p.Process)
	// Its children end with it: they hold its output, which is read to the end.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for one that has left the group
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(p.Check, " "), err, instance.Printable(strings.TrimSpace(string(out)), 300))
	}
	return nil
}

// ask wants 200 of a page.
func ask(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 300)) // best effort: the status says enough
		return fmt.Errorf("%s: %s: %s", url, resp.Status, instance.Printable(strings.TrimSpace(string(body)), 300))
	}
	return nil
}
