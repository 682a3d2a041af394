package agentctl

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// maxPath is the maximum length of a socket's path, in bytes, below the limit of every system.
const maxPath = 100

// dirs returns the directories for sockets in order of preference: a subdirectory of the
// user's run-time directory, of /run, and of the temporary directory.
func dirs(getenv func(string) string) []string {
	var out []string
	if d := getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(d) {
		out = append(out, filepath.Join(d, "pd-agent"))
	}
	return append(out, "/run/pd-agent", filepath.Join(os.TempDir(), "pd-agent-"+strconv.Itoa(os.Getuid())))
}

// in returns the path of an instance's socket. If the path would be too long, a hash of
// the key replaces role and address.
func in(dir string, k instance.Key) string {
	name := string(k.Role) + "-" + strings.NewReplacer("[", "", "]", "").Replace(k.Address)
	path := filepath.Join(dir, name+".sock")
	if len(path) > maxPath {
		sum := sha256.Sum256([]byte(k.String()))
		path = filepath.Join(dir, hex.EncodeToString(sum[:10])+".sock")
	}
	return path
}

// DefaultPath returns the path at which an agent of k creates its socket. It creates the
// directory with mode 0700, and skips one that another user owns or can access.
func DefaultPath(k instance.Key, getenv func(string) string) (string, error) {
	var errs []error
	for _, dir := range dirs(getenv) {
		path := in(dir, k)
		if len(path) > maxPath {
			errs = append(errs, fmt.Errorf("%s is too long for a socket's path", path))
			continue
		}
		err := os.Mkdir(dir, 0o700)
		if err == nil || errors.Is(err, fs.ErrExist) {
			err = private(dir)
		}
		if err == nil {
			return path, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("no directory for the control socket: %w; name a path with --socket", errors.Join(errs...))
}

// private returns an error unless a directory belongs to this user and no other user has access.
func private(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 || !ok || int(st.Uid) != os.Getuid() {
		return fmt.Errorf("%s is not a directory of this user alone", dir)
	}
	return nil
}

// Find returns the path of the socket of k, or of the only agent if k is zero.
func Find(k instance.Key, getenv func(string) string) (string, error) {
	found := sockets(k, getenv)
	if len(found) > 1 {
		found = answering(found)
	}
	switch {
	case len(found) == 0 && k.Address != "":
		return "", fmt.Errorf("%w of %s on this machine under this user", ErrNoAgent, k)
	case len(found) == 0:
		return "", fmt.Errorf("%w on this machine under this user; name its socket with --socket", ErrNoAgent)
	case len(found) > 1 && k.Address == "":
		return "", fmt.Errorf("several agents run here: select one with --role and --address, or --socket: %s", strings.Join(found, ", "))
	}
	return found[0], nil
}

// All returns the sockets of every agent of this user that answers on this machine.
func All(getenv func(string) string) []string { return answering(sockets(instance.Key{}, getenv)) }

// sockets returns the paths of the sockets of k, or of all instances if k is zero.
func sockets(k instance.Key, getenv func(string) string) (found []string) {
	for _, dir := range dirs(getenv) {
		if private(dir) != nil {
			continue
		}
		if k.Address == "" {
			list, _ := filepath.Glob(filepath.Join(dir, "*.sock")) // the pattern is well formed
			found = append(found, list...)
		} else if _, err := os.Lstat(in(dir, k)); err == nil {
			found = append(found, in(dir, k))
		}
	}
	return found
}

// answering drops sockets on which no agent listens. Killed agents leave them behind,
// also in the file system of a container that is started again.
func answering(paths []string) []string {
	return slices.DeleteFunc(paths, func(path string) bool {
		conn, err := net.DialTimeout("unix", path, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
}
