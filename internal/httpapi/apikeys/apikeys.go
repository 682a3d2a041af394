// Package apikeys holds the API keys of clients and of operators. A key of --api-key has no name and no
// rights. A file of keys has both, and is reloaded when it changes.
package apikeys

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/transport/certs/reload"
	"github.com/pdmesh/pdmesh/internal/transport/http1"
)

// Rights are the permissions of a key in addition to sending requests.
type Rights uint8

// The rights.
const (
	Priority Rights = 1 << iota // X-Vllm-Priority and the body's priority are honored
	Rank                        // X-data-parallel-rank is honored
	Trace                       // X-PD-Trace is honored

	Read    // of an admin key: explanations of routes, the log level
	Operate // of an admin key: changes of the fleet, and the rights above
)

// Has reports whether r contains a right.
func (r Rights) Has(one Rights) bool { return r&one != 0 }

// Key is the name and the rights of a key, without the key itself.
type Key struct {
	Name   string // "" for a key of --api-key or --admin-api-key
	Rights Rights
	// Class is the class of the key's requests, and MaxClass the highest that they may choose: names
	// of package admission; "" is default.
	Class, MaxClass string
}

// classes returns the names of the classes, the highest first.
func classes() []string { return []string{"interactive", "", "batch"} }

const (
	maxFile = 1 << 20
	maxKeys = 10_000
	maxName = 64
)

// parse parses lines of "key name rights class=... max-class=..."; only key and name are required.
// Errors contain the line number, never the content. rights has the rights by their names. other
// reports a key that no line may contain; may be nil.
func parse(raw []byte, rights map[string]Rights, other func(key string) bool) (table, error) {
	names, keys := map[string]bool{}, table{}
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, maxFile+1)
	for n := 1; lines.Scan(); n++ {
		fail := func(why string) error { return fmt.Errorf("line %d is unusable: %s", n, why) }
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) < 2 {
			return nil, fail(`write "key name" or "key name rights"`)
		}
		for _, c := range []byte(fields[0]) {
			if c <= ' ' || c > '~' {
				return nil, fail("a key may hold visible ASCII characters only")
			}
		}
		if other != nil && other(fields[0]) {
			return nil, fail("its key is both an admin key and a client's: that client could change the fleet")
		}
		sum, key := sha256.Sum256([]byte(fields[0])), Key{Name: fields[1]}
		if len(key.Name) > maxName || slices.ContainsFunc([]byte(key.Name), func(c byte) bool { return !http1.IsToken(c) }) {
			return nil, fail("invalid name in field 2: use up to 64 letters, digits, dashes, dots and underscores")
		}
		more := fields[2:]
		if len(more) > 0 && !strings.Contains(more[0], "=") {
			more = more[1:]
			for word := range strings.SplitSeq(fields[2], ",") {
				right, ok := rights[word]
				if !ok {
					return nil, fail("invalid right in field 3: use " + strings.Join(slices.Sorted(maps.Keys(rights)), ", ") + ", separated by commas")
				}
				key.Rights |= right
			}
		}
		if err := key.setClasses(more); err != "" {
			return nil, fail(err)
		}
		if _, known := keys[sum]; known || names[key.Name] {
			return nil, fail("its name or its key is also in an earlier line")
		}
		names[key.Name], keys[sum] = true, key
		if len(keys) > maxKeys {
			return nil, fail(fmt.Sprintf("more than %d keys", maxKeys))
		}
	}
	return keys, lines.Err()
}

// setClasses reads the words after the rights. It returns the reason why they are invalid, or "".
func (k *Key) setClasses(list []string) (problem string) {
	bounded := false
	for _, word := range list {
		name, value, _ := strings.Cut(word, "=")
		if value == "" || value != "default" && !slices.Contains(classes(), value) {
			name = ""
		}
		value = strings.TrimPrefix(value, "default")
		switch name {
		case "class":
			k.Class = value
		case "max-class":
			k.MaxClass, bounded = value, true
		default:
			return "after the rights, it may have class= and max-class=, each with interactive, default or batch"
		}
	}
	rank := func(class string) int { return slices.Index(classes(), class) }
	if !bounded && rank(k.Class) < rank(k.MaxClass) {
		k.MaxClass = k.Class
	}
	if rank(k.Class) < rank(k.MaxClass) {
		return "its class is above its max-class"
	}
	return ""
}

// table maps digests to keys. The time of a lookup depends only on the digest, which maps hash with a
// seed, so that it does not help to guess a key.
type table map[[sha256.Size]byte]Key

// Ring holds the keys. Open creates it. It is safe for concurrent use; a nil Ring requires no key.
type Ring struct {
	fixed table                // used without a file
	files *reload.Files[table] // nil without a file
	// Refused counts the requests that were refused because they had no valid key.
	Refused atomic.Int64
}

// Open returns a Ring of keys without rights and the keys of a file. It returns nil if there are neither
// keys nor a file, and an error if the file is invalid. A file with a key for which admin returns true is
// invalid, also when it changes; nil: there are no admin keys.
func Open(keys []string, path string, log logrus.FieldLogger, admin func(key string) bool) (*Ring, error) {
	return open(keys, 0, path, map[string]Rights{"priority": Priority, "rank": Rank, "trace": Trace}, log, admin)
}

// OpenAdmin returns a Ring of admin keys: key, unless it is "", with all rights and no name, and those of
// a file, with the rights read and operate. It returns nil if there are none, and an error if the file is
// invalid. A file with a key for which client returns true is invalid, also when it changes; nil: there
// are no client keys.
func OpenAdmin(key, path string, log logrus.FieldLogger, client func(key string) bool) (*Ring, error) {
	var keys []string
	if key != "" {
		keys = []string{key}
	}
	return open(keys, Read|Operate, path, map[string]Rights{"read": Read, "operate": Read | Operate}, log, client)
}

func open(keys []string, all Rights, path string, rights map[string]Rights, log logrus.FieldLogger, other func(key string) bool) (*Ring, error) {
	if len(keys) == 0 && path == "" {
		return nil, nil
	}
	fixed := table{}
	for _, key := range keys {
		fixed[sha256.Sum256([]byte(key))] = Key{Rights: all}
	}
	r := &Ring{fixed: fixed}
	if path == "" {
		return r, nil
	}
	file := reload.Options[table]{Paths: []string{path}, MaxBytes: maxFile, Parse: func(contents [][]byte, _ *table) (*table, error) {
		list, err := parse(contents[0], rights, other)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		active := maps.Clone(fixed)
		maps.Copy(active, list)
		return &active, nil
	}}
	if log != nil {
		file.Loaded = func(t *table) {
			log.WithField("keys", len(*t)).Info("keys file reloaded: " + path)
		}
		file.Rejected = func(why error) {
			log.WithError(why).Error("keys file rejected, keeping the previous keys")
		}
	}
	var err error
	if r.files, err = reload.Open(file); err != nil {
		return nil, err
	}
	return r, nil
}

// Watch rereads the file periodically until ctx ends.
func (r *Ring) Watch(ctx context.Context) {
	if r != nil && r.files != nil {
		r.files.Watch(ctx)
	}
}

// Problem returns the reason why the current file is not active, "" if it is.
func (r *Ring) Problem() string {
	if r == nil || r.files == nil {
		return ""
	}
	return r.files.Status().Problem
}

// now returns the active keys.
func (r *Ring) now() table {
	if r.files == nil {
		return r.fixed
	}
	return *r.files.Current()
}

// Len returns the number of keys.
func (r *Ring) Len() int {
	if r == nil {
		return 0
	}
	return len(r.now())
}

// Find looks a key up by its digest.
func (r *Ring) Find(key string) (found Key, ok bool) {
	if r == nil {
		return Key{}, false
	}
	found, ok = r.now()[sha256.Sum256([]byte(key))]
	return found, ok
}

// Of returns the key of a request, the zero Key if it has none.
func (r *Ring) Of(req *http.Request) Key {
	if r == nil || r.files == nil {
		return Key{} // no key has a name or rights
	}
	found, _, _ := r.Check(req)
	return found
}

// Check returns the key of a request. sent reports whether the request has a key, ok whether
// the ring contains it. Keys are sent as bearer tokens; Anthropic's clients may send
// x-api-key.
func (r *Ring) Check(req *http.Request) (found Key, sent, ok bool) {
	key, sent := Bearer(req)
	if sent {
		if found, ok = r.Find(key); ok {
			return found, true, true
		}
	}
	if key := req.Header.Get("X-Api-Key"); key != "" && IsAnthropic(req) {
		found, ok = r.Find(key)
		return found, true, ok
	}
	return Key{}, sent, false
}

// IsAnthropic reports whether a request uses Anthropic's API, judging by its path or by the
// header that its clients send.
func IsAnthropic(req *http.Request) bool {
	const messages = "/v1/messages"
	rest, ok := strings.CutPrefix(req.URL.Path, messages)
	return ok && (rest == "" || rest[0] == '/') || req.Header.Get("Anthropic-Version") != ""
}

// Bearer returns the token of an Authorization header. As in vLLM, the scheme is
// case-insensitive.
func Bearer(req *http.Request) (string, bool) {
	scheme, token, ok := strings.Cut(req.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return "", false
	}
	return strings.TrimSpace(token), true
}
