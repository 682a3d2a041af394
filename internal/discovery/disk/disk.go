// Package disk saves the membership of a proxy in a file. A proxy that starts while etcd is
// unavailable probes the saved instances, and instances that operators have removed stay removed
// when etcd is wiped.
package disk

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
)

// Format is the version of the file format that this code reads and writes.
const Format = 1

// Path returns the path of the file in a directory.
func Path(dir string) string { return filepath.Join(dir, fileName) }

const (
	fileName = "snapshot.json"
	maxFile  = 256 << 20 // ten thousand records of the largest size
)

// diskFile is the file: the state, and the SHA-256 of its bytes as written.
type diskFile struct {
	SHA256 string          `json:"sha256"`
	State  json.RawMessage `json:"state"`
}

// Head identifies the store of the entries, and when they were saved.
type Head struct {
	Format   int       `json:"format"`
	Root     string    `json:"root"`
	Cluster  string    `json:"cluster"` // hex; "" before the first list
	Revision int64     `json:"revision"`
	Schema   int64     `json:"schema,omitempty"`
	Order    int64     `json:"order,omitempty"`
	SavedAt  time.Time `json:"saved_at"` // by the clock of this machine, the only reader
}

// State is the content of the file.
type State struct {
	Head
	Entries []Entry `json:"entries"`
}

// Entry is one key of etcd.
type Entry struct {
	Key     string `json:"key"` // without the root
	Value   []byte `json:"value,omitempty"`
	Create  int64  `json:"create"`
	Mod     int64  `json:"mod"`
	Version int64  `json:"version"`
	Lease   int64  `json:"lease,omitempty"`
	Absent  string `json:"absent,omitempty"` // orphan or kept
}

// The values of Entry.Absent, for a key that etcd does not hold.
const (
	Orphan = "orphan"
	Kept   = "kept"
)

// Read reads the file. The error wraps os.ErrNotExist if there is none; any other error means that
// the file cannot be used.
func Read(dir, root string, limit time.Duration) (*State, error) {
	f, err := os.Open(Path(dir))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	var file diskFile
	if err := json.Unmarshal(raw, &file); err != nil {
		return nil, fmt.Errorf("not readable: %w", err)
	}
	if sum := sha256.Sum256(file.State); hex.EncodeToString(sum[:]) != file.SHA256 {
		return nil, errors.New("its checksum is wrong")
	}
	var s State
	if err := json.Unmarshal(file.State, &s); err != nil {
		return nil, fmt.Errorf("not readable: %w", err)
	}
	switch age := time.Since(s.SavedAt); {
	case s.Format != Format:
		return nil, fmt.Errorf("of format %d, this program reads %d", s.Format, Format)
	case s.Root != root:
		return nil, fmt.Errorf("of the prefix %q, not %q", s.Root, root)
	case age > limit:
		return nil, fmt.Errorf("too old: saved %s ago, the limit is %s", age.Round(time.Second), limit)
	}
	return &s, nil
}

// Write replaces the file.
func Write(dir string, s *State) error {
	state, _ := json.Marshal(s) // cannot fail: strings, bytes, numbers and a time of today
	return replace(dir, fileName, fmt.Appendf(nil, `{"sha256":"%x","state":%s}`+"\n", sha256.Sum256(state), state))
}

const (
	membersName = "etcd-members.json"
	maxMembers  = 1 << 20
)

// ReadMembers reads the file of WriteMembers.
func ReadMembers(dir string) (m etcd.SavedMembers, err error) {
	f, err := os.Open(filepath.Join(dir, membersName))
	if err != nil {
		return m, err
	}
	defer f.Close()
	err = json.NewDecoder(io.LimitReader(f, maxMembers)).Decode(&m)
	return m, err
}

// WriteMembers writes the members of etcd to a separate file. They are needed while etcd
// cannot be reached at its configured endpoints.
func WriteMembers(dir string, m etcd.SavedMembers) error {
	raw, _ := json.Marshal(m) // cannot fail: strings
	return replace(dir, membersName, append(raw, '\n'))
}

// replace replaces a file atomically: at any time either the old or the new one is there, complete.
func replace(dir, name string, raw []byte) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	removeInterrupted(dir, name)
	f, err := os.CreateTemp(dir, name+".*") // with mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	if _, err = f.Write(raw); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), filepath.Join(dir, name)); err != nil {
		return err
	}
	if cerr := f.Close(); cerr != nil {
		return cerr
	}
	return syncDir(dir)
}

// removeInterrupted removes the temporary files of writes that a kill has interrupted. Two proxies may
// share a directory, so those of the last minute are kept.
func removeInterrupted(dir, name string) {
	entries, _ := os.ReadDir(dir) // remaining files do no harm
	for _, e := range entries {
		random, ok := strings.CutPrefix(e.Name(), name+".")
		if !ok || strings.Trim(random, "0123456789") != "" {
			continue
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > time.Minute {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// syncDir makes a rename survive a crash.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
