package fault

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// faultJSON is a Fault on the wire: durations are strings such as "250ms".
type faultJSON struct {
	Kind        Kind              `json:"kind"`
	Path        string            `json:"path,omitempty"`
	Rank        string            `json:"rank,omitempty"`
	Nth         int               `json:"nth,omitempty"`
	Times       int               `json:"times,omitempty"`
	Probability float64           `json:"probability,omitempty"`
	Seed        uint64            `json:"seed,omitempty"`
	At          Stage             `json:"at,omitempty"`
	Tokens      int               `json:"tokens,omitempty"`
	Status      int               `json:"status,omitempty"`
	Body        string            `json:"body,omitempty"`
	Header      map[string]string `json:"header,omitempty"`
	TTFT        string            `json:"ttft,omitempty"`
	ITL         string            `json:"itl,omitempty"`
}

// UnmarshalJSON reads a Fault as /fake/faults takes it: fields in lower case,
// durations as strings, no unknown fields.
func (f *Fault) UnmarshalJSON(data []byte) error {
	var w faultJSON
	if err := unmarshalStrict(data, &w); err != nil {
		return err
	}
	*f = Fault{
		Kind: w.Kind, Path: w.Path, Rank: w.Rank, Nth: w.Nth, Times: w.Times, Probability: w.Probability, Seed: w.Seed,
		At: w.At, Tokens: w.Tokens, Status: w.Status, Body: w.Body, Header: w.Header,
	}
	for _, d := range []struct {
		text string
		into *time.Duration
	}{{w.TTFT, &f.TTFT}, {w.ITL, &f.ITL}} {
		if d.text == "" {
			continue
		}
		v, err := time.ParseDuration(d.text)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		*d.into = v
	}
	return nil
}

// MarshalJSON is the inverse of UnmarshalJSON.
func (f Fault) MarshalJSON() ([]byte, error) { return json.Marshal(f.wire()) }

func (f Fault) wire() faultJSON {
	w := faultJSON{
		Kind: f.Kind, Path: f.Path, Rank: f.Rank, Nth: f.Nth, Times: f.Times, Probability: f.Probability, Seed: f.Seed,
		At: f.At, Tokens: f.Tokens, Status: f.Status, Body: f.Body, Header: f.Header,
	}
	if f.TTFT > 0 {
		w.TTFT = f.TTFT.String()
	}
	if f.ITL > 0 {
		w.ITL = f.ITL.String()
	}
	return w
}

func unmarshalStrict(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: something follows the JSON value", ErrInvalid)
	}
	return nil
}

// Read adds what a body of /fake/faults holds: one fault or a list of them.
func (s *Script) Read(body io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(body, 1<<20))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	var faults []Fault
	if i := pydantic.SkipSpace(data, 0); i < len(data) && data[i] == '[' {
		err = unmarshalStrict(data, &faults)
	} else {
		faults = make([]Fault, 1)
		err = unmarshalStrict(data, &faults[0])
	}
	if err != nil {
		return err
	}
	return s.Add(faults)
}
