package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// HostID returns an id of this machine and network namespace, in which an address such as
// 127.0.0.1:8100 is unique. Two containers on one machine have different ids. A restarted
// agent has the same id, so it may take over the key of its dead predecessor.
//
// The id is a hash, because the machine id is confidential (machine-id(5)). root is the file
// system of the machine, os.DirFS("/") in a program; readlink is os.Readlink or a
// replacement.
func HostID(root fs.FS, readlink func(string) (string, error)) (string, error) {
	machine := ""
	// The boot id is for images without a machine id. It changes with a reboot, which no
	// registration survives.
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
			return "", fmt.Errorf("this machine has neither machine id, boot id nor host name (set --host-id): %w", err)
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
