package docs_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/test/harness"
)

var binDir string

// asInit is set in the child that configures a network and then becomes the shell.
const asInit = "PD_TEST_DOCS_INIT"

func TestMain(m *testing.M) {
	if os.Getenv(asInit) != "" {
		if err := becomeShell(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	testkit.GoldenFlag()
	os.Exit(harness.Main(m, &binDir))
}

// becomeShell adds the addresses used by the pages to the loopback device of this network namespace, then
// replaces the process by a shell that reads world.sh.
func becomeShell() error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	for i := range 10 {
		name, ip := "lo", net.IPv4(127, 0, 0, 1)
		if i > 0 {
			name, ip = fmt.Sprintf("lo:%d", i), net.IPv4(10, 0, 0, byte(i))
		}
		var address struct { // ifreq with a sockaddr_in
			name [syscall.IFNAMSIZ]byte
			in   syscall.RawSockaddrInet4
			rest [8]byte
		}
		copy(address.name[:], name)
		address.in.Family = syscall.AF_INET
		copy(address.in.Addr[:], ip.To4())
		var flags struct { // ifreq with flags
			name  [syscall.IFNAMSIZ]byte
			flags uint16
			rest  [22]byte
		}
		flags.name, flags.flags = address.name, syscall.IFF_UP|syscall.IFF_RUNNING
		for _, c := range []struct {
			request uintptr
			with    unsafe.Pointer
		}{{syscall.SIOCSIFADDR, unsafe.Pointer(&address)}, {syscall.SIOCSIFFLAGS, unsafe.Pointer(&flags)}} {
			if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), c.request, uintptr(c.with)); errno != 0 {
				return fmt.Errorf("%s %v: %w", name, ip, errno)
			}
		}
	}
	_ = syscall.Close(fd)
	// pidof finds the processes of this namespace; where mounting is not permitted, it finds none of ours.
	_ = syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, "")
	_ = syscall.Mount("tmpfs", "/run", "tmpfs", 0, "") // directory of the agents' sockets
	_ = syscall.Mount("proc", "/proc", "proc", 0, "")
	bash, err := exec.LookPath("bash")
	if err != nil {
		return err
	}
	return syscall.Exec(bash, []string{"bash", os.Getenv("WORLD_SH")}, os.Environ())
}

// alone runs a command as the first process of its own namespaces.
func alone(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
}

// Blocks run unchanged, with their addresses and ports.
func TestBlocksRun(t *testing.T) {
	t.Parallel()
	longform.Test(t)
	probe := exec.CommandContext(t.Context(), "true")
	alone(probe)
	if err := probe.Run(); err != nil {
		if os.Getenv("REQUIRE_NETNS") != "" {
			t.Fatalf("REQUIRE_NETNS is set, but network namespaces are not available: %v", err)
		}
		t.Skipf("no network namespace (REQUIRE_NETNS=1 makes that a failure): %v", err)
	}
	world, err := filepath.Abs("testdata/world.sh")
	require.NoError(t, err)
	scripts, err := filepath.Abs(filepath.Join(root, "scripts"))
	require.NoError(t, err)
	for _, b := range blocks(t) {
		i := of(b)
		if i < 0 || table[i].world == "" {
			continue
		}
		r := table[i]
		t.Run(fmt.Sprintf("%s:%d", b.page, b.line), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for name, text := range map[string]string{"block.sh": b.text + "\n", "then.sh": r.then + "\n"} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, "/proc/self/exe")
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), asInit+"=1", "WORLD_SH="+world, "WORLD="+r.world, "REAL="+binDir, "SCRIPTS="+scripts)
			alone(cmd)
			cmd.WaitDelay = 10 * time.Second
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s\n%s", err, b.text, out)
				logs, _ := filepath.Glob(filepath.Join(dir, "logs", "*")) // the pattern is valid
				for _, log := range logs {
					text, _ := os.ReadFile(log) // best effort
					t.Logf("%s:\n%s", filepath.Base(log), text[max(0, len(text)-2000):])
				}
			}
		})
	}
}
