package transfer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// The format of an export is JSON Lines. The first line is the header; every other
// line is one key, with the exact value in etcd as text.
const (
	formatName    = "pdmesh-export"
	formatVersion = 1
)

// maxLine bounds a line: the largest value, every byte of it escaped.
const maxLine = 8 * instance.MaxRecordBytes

// exportHeader is the first line.
type exportHeader struct {
	Format   string    `json:"format"`
	V        int       `json:"v"`
	Prefix   string    `json:"prefix"`   // root of the keys, for people: import has its own
	Revision int64     `json:"revision"` // of the etcd it was read from
	At       time.Time `json:"at"`       // by the clock of the exporting machine, for people
}

// exportLine is one key.
type exportLine struct {
	Kind    store.KeyKind `json:"kind"`
	Role    instance.Role `json:"role"`
	Address string        `json:"address"`
	Value   *string       `json:"value,omitempty"`
	TTL     int64         `json:"ttl,omitempty"`     // of what ends by itself: seconds left
	Skipped string        `json:"skipped,omitempty"` // why it is not exported; then it has no value
}

func writeExport(w io.Writer, head exportHeader, entries []store.Carried) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(head); err != nil {
		return fmt.Errorf("write the export: %w", err)
	}
	for _, c := range entries {
		line := exportLine{Kind: c.Kind, Role: c.Key.Role, Address: instance.Printable(c.Key.Address, 0), Skipped: c.Skip}
		if c.Skip == "" {
			value := string(c.Value)
			line.Value, line.TTL = &value, int64(c.TTL/time.Second)
		}
		if err := enc.Encode(line); err != nil {
			return fmt.Errorf("write the export: %w", err)
		}
	}
	return nil
}

// errNoExport is wrapped by every error about the file itself.
var errNoExport = errors.New("not an export that this pdctl can read")

// readExport reads and checks the whole export, so that an invalid one has no effect.
func readExport(r io.Reader) ([]store.Carried, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	var entries []store.Carried
	n := 0
	for lines.Scan() {
		n++
		text := bytes.TrimSpace(lines.Bytes())
		if n == 1 {
			if err := checkHeader(text); err != nil {
				return nil, err
			}
			continue
		}
		if len(text) == 0 {
			continue
		}
		c, err := readLine(text)
		if err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", errNoExport, n, err)
		}
		entries = append(entries, c)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: after line %d: %w", errNoExport, n, err)
	}
	if n == 0 {
		return nil, fmt.Errorf("%w: it is empty; did pdctl export fail?", errNoExport)
	}
	return entries, nil
}

func checkHeader(text []byte) error {
	var head exportHeader
	if err := json.Unmarshal(text, &head); err != nil || head.Format != formatName {
		return fmt.Errorf("%w: its first line is not {\"format\":%q,...}; make one with pdctl export", errNoExport, formatName)
	}
	if head.V != formatVersion {
		return fmt.Errorf("%w: it is of version %d, this program reads version %d; use the pdctl that wrote it, or a newer one", errNoExport, head.V, formatVersion)
	}
	return nil
}

func readLine(text []byte) (store.Carried, error) {
	var line exportLine
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&line); err != nil {
		return store.Carried{}, err
	}
	c := store.Carried{
		Kind: line.Kind, Key: instance.Key{Role: line.Role, Address: line.Address},
		TTL: time.Duration(line.TTL) * time.Second, Skip: line.Skipped,
	}
	if c.Skip != "" {
		return c, nil
	}
	if line.Value == nil {
		return store.Carried{}, errors.New("it has no value, and no reason why it was skipped")
	}
	c.Value = []byte(*line.Value)
	if err := c.Check(); err != nil {
		return store.Carried{}, err
	}
	if line.TTL < 0 || (line.TTL > 0 && c.Kind == store.KeyRecord) {
		return store.Carried{}, fmt.Errorf("ttl %d: only pending adds and overrides have one, in seconds", line.TTL)
	}
	return c, nil
}
