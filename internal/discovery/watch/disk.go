package watch

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// What the watcher knows, on disk: a proxy that starts while etcd is away asks
// the instances it knew, and an operator's removals outlive a wipe of etcd.

const (
	stateFile    = "snapshot.json"
	stateFormat  = 1
	maxStateFile = 256 << 20 // ten thousand records of the largest size
)

// diskFile is the file: the state, and the SHA-256 of its bytes as written.
type diskFile struct {
	SHA256 string          `json:"sha256"`
	State  json.RawMessage `json:"state"`
}

type diskState struct {
	Format   int         `json:"format"`
	Root     string      `json:"root"`
	Cluster  string      `json:"cluster"` // hex; "" before the first list
	Revision int64       `json:"revision"`
	Schema   int64       `json:"schema,omitempty"`
	Order    int64       `json:"order,omitempty"`
	SavedAt  time.Time   `json:"saved_at"` // by this machine's clock, which alone reads it
	Entries  []diskEntry `json:"entries"`
}

type diskEntry struct {
	Key     string `json:"key"` // without the root
	Value   []byte `json:"value,omitempty"`
	Create  int64  `json:"create"`
	Mod     int64  `json:"mod"`
	Version int64  `json:"version"`
	Lease   int64  `json:"lease,omitempty"`
	Absent  string `json:"absent,omitempty"` // orphan or kept
}

const (
	diskOrphan = "orphan"
	diskKept   = "kept"
)

// image is what is to be written: all of the membership at one moment. It holds
// the entries themselves, of which only what is fixed is read.
type image struct {
	head   diskState // without Entries
	order  []*entry
	absent map[*entry]string // those that have something in diskEntry.Absent
}

// errOldState is given by readState for what is too old to be of use.
var errOldState = errors.New("too old")

// readState reads the file. A missing one gives an error that is
// os.ErrNotExist; every other error means that the file is of no use.
func readState(dir, root string, limit time.Duration) (*diskState, error) {
	f, err := os.Open(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxStateFile+1))
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
	var s diskState
	if err := json.Unmarshal(file.State, &s); err != nil {
		return nil, fmt.Errorf("not readable: %w", err)
	}
	switch age := time.Since(s.SavedAt); {
	case s.Format != stateFormat:
		return nil, fmt.Errorf("of format %d, this program reads %d", s.Format, stateFormat)
	case s.Root != root:
		return nil, fmt.Errorf("of the prefix %q, not %q", s.Root, root)
	case age > limit:
		return nil, fmt.Errorf("%w: saved %s ago, the limit is %s", errOldState, age.Round(time.Second), limit)
	}
	return &s, nil
}

// writeState replaces the file, so that at any time either the old or the new
// one is there, whole.
func writeState(dir string, m *image) (err error) {
	raw, err := m.file()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, stateFile+".*") // with mode 0600
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
	if err = os.Rename(f.Name(), filepath.Join(dir, stateFile)); err != nil {
		return err
	}
	if cerr := f.Close(); cerr != nil {
		return cerr
	}
	return syncDir(dir)
}

// syncDir makes a rename outlive a crash.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
