package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// HostID names this network namespace of this machine: the place in which an
// address like 127.0.0.1:8100 means one thing. Two containers on one machine
// differ; an agent restarted in the same place finds the same id, and may take
// over the key of its dead predecessor.
//
// It is a hash, so that the machine id (which is confidential by its own
// manual) does not leave the machine. root is the file system of the machine,
// os.DirFS("/") in a program; readlink is os.Readlink or a replacement for it.
func HostID(root fs.FS, readlink func(string) (string, error)) (string, error) {
	machine := ""
	// The boot id is the fallback of images that ship without a machine id: it
	// changes with a reboot, after which no registration of before is left.
	for _, name := range []string{"etc/machine-id", "var/lib/dbus/machine-id", "proc/sys/kernel/random/boot_id"} {
		raw, err := fs.ReadFile(root, name)
		if id := strings.TrimSpace(string(raw)); err == nil && id != "" && id != "uninitialized" {
			machine = id
			break
		}
	}
	if machine == "" {
		name, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("this machine has neither machine-id, boot id nor host name (give --host-id): %w", err)
		}
		machine = name
	}
	ns, err := readlink("/proc/self/ns/net")
	if err != nil {
		ns = "" // not Linux, or no /proc: one network per machine
	}
	sum := sha256.Sum256([]byte("pd-host\x00" + machine + "\x00" + ns))
	return hex.EncodeToString(sum[:8]), nil
}
