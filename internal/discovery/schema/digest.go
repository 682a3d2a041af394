package schema

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Digest is the JSON value of a proxy's key below load/: its load on each instance.
type Digest struct {
	V int `json:"v"`
	// Applied is a mod_revision of the membership. Every leg that was picked from an earlier
	// membership is in Load, or has ended.
	Applied int64 `json:"applied"`
	// Load has the instances with legs in flight, by role/address.
	Load map[string]LoadCount `json:"load"`
	// LeftOut is the number of instances that did not fit: those with the fewest legs.
	LeftOut int `json:"left_out,omitempty"`
	// LeavingLeftOut is the number of leaving instances among LeftOut. Unless it is 0, an instance
	// that is not in Load may have legs in flight.
	LeavingLeftOut int `json:"leaving_left_out,omitempty"`
	// Prompts are the prompts sent to prefill instances since the previous digest, in the format of
	// prefix.Placements. They are now in the caches of these instances.
	Prompts []byte `json:"prompts,omitempty"`
	// Keys has the demand of API keys with limits, by name. KeyRates rates come first: requests,
	// input, output and uncached tokens per minute, concurrent requests, and then the admitted
	// requests and tokens per minute. After them come the counts of admitted requests and tokens,
	// modulo 2^40. Proxies of older versions omit the last parts; proxies without limits omit the
	// field.
	Keys map[string][]int64 `json:"keys,omitempty"`
	// Queue has the API keys that wait for a model, or were served lately. Proxies of an older
	// version, and those whose queue is off or idle, omit it.
	Queue []QueueEntry `json:"queue,omitempty"`
	free  int          // bytes left for prompts
	// At is the time of writing by the clock of the writer. It is for display and never compared.
	At *time.Time `json:"at,omitempty"`
}

// LoadCount is the load of one proxy on one instance.
type LoadCount struct {
	InFlight int64 `json:"in_flight"`      // legs
	Waiting  int64 `json:"waiting_tokens"` // tokens of prompts that are not computed yet
	Held     int64 `json:"held_tokens"`    // tokens of prompts in the KV cache
}

// QueueEntry is the state of one API key, by its name, in one class of a model's queue.
type QueueEntry struct {
	Model    string `json:"m"` // see instance.QueueName
	Class    int    `json:"c"` // 0 (the highest) to 2
	Key      string `json:"k,omitempty"`
	Attained int64  `json:"a,omitempty"` // service, with a half-life of 60 s
	Backlog  int64  `json:"b,omitempty"` // cost of the waiting requests
}

const (
	// MaxQueue is the largest number of entries of a queue in a digest.
	MaxQueue = 64
	maxQueue = 4 << 10 // bytes of these entries
)

// SetQueue adds entries to a digest, as far as they fit.
func (d *Digest) SetQueue(entries []QueueEntry) {
	free := min(maxQueue, d.free) - len(`"queue":[],`)
	for _, e := range entries {
		raw, err := json.Marshal(e)
		if free -= len(raw) + 1; err != nil || free < 0 || len(d.Queue) == MaxQueue {
			break
		}
		d.Queue = append(d.Queue, e)
		d.free -= len(raw) + 1
	}
}

// queueDiffers reports whether the backlog of a key differs much. Decay of attained service is no
// difference, since other proxies compute it themselves.
func (d *Digest) queueDiffers(before *Digest) bool {
	type name struct {
		model, key string
		class      int
	}
	was := map[name]int64{}
	for _, e := range before.Queue {
		if e.Backlog > 0 {
			was[name{e.Model, e.Key, e.Class}] = e.Backlog
		}
	}
	for _, e := range d.Queue {
		n := name{e.Model, e.Key, e.Class}
		if diff := max(e.Backlog-was[n], was[n]-e.Backlog); diff > max(2048, was[n]/10) || (e.Backlog == 0) != (was[n] == 0) {
			return true
		}
		delete(was, n)
	}
	return len(was) > 0
}

// LoadEntry is the load of one proxy on one instance, for NewDigest.
type LoadEntry struct {
	Key instance.Key
	LoadCount
	// Leaving reports whether the instance is being drained or removed.
	Leaving bool
}

const (
	maxDigest  = 64 << 10 // bytes of the value
	maxPrompts = 8 << 10  // bytes of prompts in a digest
	maxKeys    = 64       // API keys in a digest
	maxKeySize = 6 << 10  // bytes of all these
	maxCount   = 1 << 40  // largest number in a digest
)

// KeyRates is the number of rates at the beginning of a list in Digest.Keys; counts follow them.
const KeyRates = 9

// ErrDigest is wrapped by the error of a digest that cannot be used.
var ErrDigest = errors.New("invalid load digest")

// NewDigest returns a digest of the load at a time. If not all entries fit, leaving instances come
// first, then those with the most legs in flight.
func NewDigest(applied int64, entries []LoadEntry, at time.Time) Digest {
	d := Digest{V: 1, Applied: applied, Load: make(map[string]LoadCount, len(entries)), At: &at, free: maxDigest - 256}
	slices.SortFunc(entries, func(a, b LoadEntry) int {
		if a.Leaving != b.Leaving {
			if a.Leaving {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.InFlight, a.InFlight), cmp.Compare(b.Held, a.Held), cmp.Compare(a.Key.Address, b.Key.Address))
	})
	free := d.free
	for _, e := range entries {
		if e.LoadCount == (LoadCount{}) {
			continue
		}
		key := e.Key.String()
		// The numbers, the names of the fields, and the punctuation around them.
		n := len(strconv.Quote(key)) + len(`{"in_flight":,"waiting_tokens":,"held_tokens":}:,`)
		for _, v := range []int64{e.InFlight, e.Waiting, e.Held} {
			n += len(strconv.FormatInt(v, 10))
		}
		if free -= n; free < 0 {
			d.LeftOut++
			if e.Leaving {
				d.LeavingLeftOut++
			}
			continue
		}
		d.Load[key] = e.LoadCount
		d.free = free
	}
	return d
}

// DecodeDigest decodes a digest. It rejects a newer schema and values out of range.
func DecodeDigest(value []byte) (Digest, error) {
	var d Digest
	if len(value) > maxDigest {
		return d, fmt.Errorf("%w: %d bytes, more than %d", ErrDigest, len(value), maxDigest)
	}
	if err := json.Unmarshal(value, &d); err != nil {
		return Digest{}, fmt.Errorf("%w: %s", ErrDigest, instance.JSONError(err))
	}
	if d.V != 1 {
		return Digest{}, fmt.Errorf("%w: schema %d, this program reads 1", ErrDigest, d.V)
	}
	if d.Applied < 0 || d.LeftOut < 0 || d.LeavingLeftOut < 0 {
		return Digest{}, fmt.Errorf("%w: negative number", ErrDigest)
	}
	for key, c := range d.Load {
		role, address, _ := strings.Cut(key, "/")
		if role := instance.Role(role); role != instance.Prefill && role != instance.Decode || address == "" {
			return Digest{}, fmt.Errorf("%w: %s is not an instance", ErrDigest, Quote(key, 80))
		}
		for _, v := range []int64{c.InFlight, c.Waiting, c.Held} {
			if v < 0 || v > maxCount {
				return Digest{}, fmt.Errorf("%w: %d of %s is out of range", ErrDigest, v, Quote(key, 80))
			}
		}
	}
	if len(d.Keys) > maxKeys {
		return Digest{}, fmt.Errorf("%w: %d API keys, more than %d", ErrDigest, len(d.Keys), maxKeys)
	}
	for key, demand := range d.Keys {
		if len(demand) > 16 || slices.ContainsFunc(demand, func(n int64) bool { return n < 0 || n > maxCount }) {
			return Digest{}, fmt.Errorf("%w: demand of %s", ErrDigest, Quote(key, 80))
		}
	}
	if len(d.Queue) > MaxQueue || slices.ContainsFunc(d.Queue, func(e QueueEntry) bool {
		return e.Class < 0 || e.Class > 2 || min(e.Attained, e.Backlog) < 0 || max(e.Attained, e.Backlog) > maxCount ||
			e.Key != instance.Printable(e.Key, 64)
	}) {
		return Digest{}, fmt.Errorf("%w: the queue is out of range", ErrDigest)
	}
	return d, nil
}

// SetKeys sets Keys. Keys that do not fit are left out, the last ones by name, at all proxies.
func (d *Digest) SetKeys(keys map[string][]int64) {
	free := min(maxKeySize, d.free)
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		n := len(strconv.Quote(name)) + len("1099511627776,")*len(keys[name]) + len(`:[],`) // maxCount
		if n > free || len(d.Keys) == maxKeys {
			break
		}
		if d.Keys == nil {
			d.Keys = map[string][]int64{}
		}
		d.Keys[name] = keys[name]
		free, d.free = free-n, d.free-n
	}
}

// PromptBytes returns the number of bytes of prompts that fit into the digest, before base64
// encoding.
func (d *Digest) PromptBytes() int {
	return min(maxPrompts, base64.StdEncoding.DecodedLen(max(0, d.free-len(`"prompts":"",`))))
}

// Differs reports whether d differs so much from the previous digest that it should be published
// within a second. Small changes wait for loaddigest.Refresh.
func (d *Digest) Differs(before *Digest) bool {
	if before == nil || d.Applied != before.Applied || d.queueDiffers(before) {
		return true
	}
	near := func(n, was, least int64) bool { return max(n-was, was-n) <= max(least, was/10) }
	sameLoad := maps.EqualFunc(d.Load, before.Load, func(c, was LoadCount) bool {
		return near(c.InFlight, was.InFlight, 0) && near(c.Waiting, was.Waiting, 2048) && near(c.Held, was.Held, 2048)
	})
	return !sameLoad || !maps.EqualFunc(d.Keys, before.Keys, func(demand, was []int64) bool {
		return slices.EqualFunc(demand, was, func(n, was int64) bool { return near(n, was, 2) })
	})
}

// Equal reports whether two digests have the same load, demand of keys and revision, and about the same
// backlog.
func (d *Digest) Equal(before *Digest) bool {
	return before != nil && d.Applied == before.Applied && d.LeftOut == before.LeftOut && d.LeavingLeftOut == before.LeavingLeftOut &&
		maps.Equal(d.Load, before.Load) && maps.EqualFunc(d.Keys, before.Keys, slices.Equal[[]int64]) && !d.queueDiffers(before)
}
