package real_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// fenced matches the shell blocks of a page.
var fenced = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// TestFirstHour runs the shell blocks of README.md, which cover a user's first hour, unchanged and with
// the installed vllm command. Settings that this machine needs are in the environment.
func TestFirstHour(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	root := absolute("../..")
	page, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	script := ""
	for _, block := range fenced.FindAllStringSubmatch(string(page), -1) {
		script += block[1]
	}
	if n := strings.Count(script, "vllm serve"); n != 2 {
		t.Fatalf("the page starts %d engines:\n%s", n, script)
	}
	for _, port := range []string{"8000", "8100", "8200", "2379", "5600", "5601"} {
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatalf("the page's ports must be free: %v", err)
		}
		l.Close()
	}

	home := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	// However this test ends, the processes of the page must be stopped: the trap forwards the signal.
	// The kernel sends it when the thread that started the shell exits.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "bash", "-eu", "-c", "trap 'trap - TERM; kill 0' TERM\n"+script)
	cmd.Dir = root
	cmd.Env = append([]string{
		"HOME=" + home, "PATH=" + vllmDir() + string(os.PathListSeparator) + os.Getenv("PATH"),
		"MODEL=" + filepath.Join(lab.dir, "model"),
		"VLLM_CPU_KVCACHE_SPACE=1", // GiB; by default each engine takes most of the memory
		"PD_TEST_LAB_ZYGOTE=" + lab.socket,
	}, append(goEnvironment(t), lab.env...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) } // the agents stop their engines
	out, err := os.Create(filepath.Join(home, "output"))
	require.NoError(t, err)
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out // a file, so that Wait does not block on processes that an engine left behind
	err = cmd.Run()
	if err != nil { // the script may have ended before its processes
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	}
	raw, readErr := os.ReadFile(out.Name())
	if err != nil || readErr != nil {
		t.Fatalf("%v, %v\n%s", err, readErr, raw)
	}
	if !strings.Contains(string(raw), "data: [DONE]") || strings.Contains(string(raw), `data: {"error"`) {
		t.Errorf("no complete stream:\n%s", raw)
	}
	for source, some := range map[string]bool{"local_compute": false, "external_kv_transfer": true} {
		m := regexp.MustCompile(`(?m)^vllm:prompt_tokens_by_source_total\{.*source="` + source + `".*\} (\S+)$`).FindStringSubmatch(string(raw))
		if m == nil {
			t.Errorf("decode does not report %s:\n%s", source, raw)
			continue
		}
		if n, err := strconv.ParseFloat(m[1], 64); err != nil || (n > 0) != some {
			t.Errorf("prompt tokens of decode from %s: %s", source, m[1])
		}
		logf("README.md: prompt tokens of decode by %s: %s", source, m[1])
	}
}

// vllmDir returns the directory of the vllm command of the page: that of the installed one or, for quick work
// on the page, that of the zygote.
func vllmDir() string {
	if os.Getenv("PD_TEST_REAL_FIRST_HOUR") == "zygote" {
		return absolute("lab/bin")
	}
	return filepath.Join(lab.dir, "venv", "bin")
}

// goEnvironment keeps Go's caches although HOME is changed.
func goEnvironment(t *testing.T) (out []string) {
	t.Helper()
	names := []string{"GOCACHE", "GOMODCACHE", "GOPATH", "GOPROXY", "GOFLAGS", "GONOSUMDB", "GONOSUMCHECK", "GOSUMDB"}
	raw, err := exec.CommandContext(t.Context(), "go", append([]string{"env"}, names...)...).Output()
	require.NoError(t, err)
	values := strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
	for i, name := range names {
		if i < len(values) && values[i] != "" {
			out = append(out, fmt.Sprintf("%s=%s", name, values[i]))
		}
	}
	return out
}
