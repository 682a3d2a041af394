package schema

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Digest is the JSON value of a proxy's key below load/: what it has in flight.
type Digest struct {
	V int `json:"v"`
	// Applied is a mod_revision under the keys of the membership: all that was picked
	// without knowing of it is in Load, or has ended.
	Applied int64 `json:"applied"`
	// Load has the instances on which something is in flight, by role/address.
	Load map[string]LoadCount `json:"load"`
	// LeftOut is how many there was no room for: those with least in flight.
	LeftOut int `json:"left_out,omitempty"`
	// LeavingLeftOut is how many of these somebody waits for. While there are any, what
	// does not are in Load may be in flight all the same.
	LeavingLeftOut int `json:"leaving_left_out,omitempty"`
	// Prompts are those that went to prefill instances since the digest before, as
	// prefix.Placements makes them: what the caches of these hold by now.
	Prompts []byte `json:"prompts,omitempty"`
	room    int    // bytes that are free for prompts
	// At is when it was written, by the writer's clock: for people, never compared.
	At *time.Time `json:"at,omitempty"`
}

// LoadCount is what one proxy has in flight on one instance.
type LoadCount struct {
	InFlight int64 `json:"in_flight"`
	Waiting  int64 `json:"waiting_tokens"` // of prompts that it has yet to compute
	Held     int64 `json:"held_tokens"`    // of prompts that it holds
}

// LoadEntry is one of what a proxy has in flight.
type LoadEntry struct {
	Key instance.Key
	LoadCount
	// Leaving reports whether the instance gets nothing new: somebody waits for its end.
	Leaving bool
}

// maxDigest bounds the value of the key, maxCount every number in it.
const (
	maxDigest = 64 << 10
	// promptsRoom is how many bytes of prompts a digest has at most.
	promptsRoom = 8 << 10
	maxCount    = 1 << 40
)

// ErrDigest is wrapped by the error of a digest that cannot be used.
var ErrDigest = errors.New("load digest not usable")

// NewDigest makes a digest of what is in flight. Where that is too much, those that
// somebody waits for come first, then those with most in flight.
func NewDigest(applied int64, entries []LoadEntry, at time.Time) Digest {
	d := Digest{V: 1, Applied: applied, Load: make(map[string]LoadCount, len(entries)), At: &at, room: maxDigest - 256}
	slices.SortFunc(entries, func(a, b LoadEntry) int {
		if a.Leaving != b.Leaving {
			if a.Leaving {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.InFlight, a.InFlight), cmp.Compare(b.Held, a.Held), cmp.Compare(a.Key.Address, b.Key.Address))
	})
	room := d.room
	for _, e := range entries {
		if e.LoadCount == (LoadCount{}) {
			continue
		}
		key := e.Key.String()
		// The count and what stands around it, and quotes, a colon and a comma.
		n := len(strconv.Quote(key)) + len(`{"in_flight":,"waiting_tokens":,"held_tokens":}:,`)
		for _, v := range []int64{e.InFlight, e.Waiting, e.Held} {
			n += len(strconv.FormatInt(v, 10))
		}
		if room -= n; room < 0 {
			d.LeftOut++
			if e.Leaving {
				d.LeavingLeftOut++
			}
			continue
		}
		d.Load[key] = e.LoadCount
		d.room = room
	}
	return d
}

// DecodeDigest reads a digest. One of a newer schema, or with a value that cannot be, is
// not used at all.
func DecodeDigest(value []byte) (Digest, error) {
	var d Digest
	if len(value) > maxDigest {
		return d, fmt.Errorf("%w: %d bytes, more than %d", ErrDigest, len(value), maxDigest)
	}
	if err := json.Unmarshal(value, &d); err != nil {
		return Digest{}, fmt.Errorf("%w: %s", ErrDigest, instance.Printable(err.Error(), 200))
	}
	if d.V != 1 {
		return Digest{}, fmt.Errorf("%w: schema %d, this program reads 1", ErrDigest, d.V)
	}
	if d.Applied < 0 || d.LeftOut < 0 || d.LeavingLeftOut < 0 {
		return Digest{}, fmt.Errorf("%w: a number below 0", ErrDigest)
	}
	for key, c := range d.Load {
		role, address, _ := strings.Cut(key, "/")
		if role := instance.Role(role); role != instance.Prefill && role != instance.Decode || address == "" {
			return Digest{}, fmt.Errorf("%w: %s is no instance", ErrDigest, Quote(key, 80))
		}
		for _, v := range []int64{c.InFlight, c.Waiting, c.Held} {
			if v < 0 || v > maxCount {
				return Digest{}, fmt.Errorf("%w: %d of %s cannot be", ErrDigest, v, Quote(key, 80))
			}
		}
	}
	return d, nil
}

// PromptBytes is how many bytes of prompts a digest has room for: as text they are longer.
func (d *Digest) PromptBytes() int {
	return min(promptsRoom, base64.StdEncoding.DecodedLen(max(0, d.room-len(`"prompts":"",`))))
}

// Differs decides whether a digest says so much else than the one before that the others
// should know within a second. Small changes wait for refreshLoad.
func (d *Digest) Differs(before *Digest) bool {
	if before == nil || d.Applied != before.Applied || len(d.Load) != len(before.Load) {
		return true
	}
	much := func(a, b, least int64) bool {
		diff := max(a-b, b-a)
		return diff > max(least, b/10)
	}
	for key, c := range d.Load {
		was, ok := before.Load[key]
		if !ok || much(c.InFlight, was.InFlight, 0) || much(c.Waiting, was.Waiting, 2048) || much(c.Held, was.Held, 2048) {
			return true
		}
	}
	return false
}

// Equal reports whether two digests say the same.
func (d *Digest) Equal(before *Digest) bool {
	if before == nil || d.Applied != before.Applied || d.LeftOut != before.LeftOut || d.LeavingLeftOut != before.LeavingLeftOut || len(d.Load) != len(before.Load) {
		return false
	}
	for key, c := range d.Load {
		if was, ok := before.Load[key]; !ok || was != c {
			return false
		}
	}
	return true
}
