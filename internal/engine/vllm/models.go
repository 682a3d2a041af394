package vllm

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// card is the kept part of one object of /v1/models, which has about 500 bytes.
type card struct {
	ID          string          `json:"id"`
	Root        *string         `json:"root"`
	MaxModelLen json.RawMessage `json:"max_model_len"` // null for a LoRA adapter
}

// errShape is the error of a list whose JSON differs from vLLM's.
var errShape = errors.New("not a list of models")

// readModels decodes the body of /v1/models object by object. From a body of more than maxModelsBytes, it
// returns the models up to that size.
func readModels(r io.Reader) (instance.Facts, error) {
	limited := &io.LimitedReader{R: r, N: maxModelsBytes}
	br := bufio.NewReader(limited)
	head, err := br.Peek(80)
	if err != nil && !errors.Is(err, io.EOF) {
		return instance.Facts{}, err
	}
	head = bytes.Clone(head)
	var facts instance.Facts
	err = decodeModels(json.NewDecoder(br), &facts)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
	case limited.N <= 0 && len(facts.Models) > 0:
		facts.ModelsTruncated = true
	case limited.N <= 0:
		return instance.Facts{}, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, maxModelsBytes)
	case errors.Is(err, errShape), errors.As(err, &syntax), errors.As(err, &kind), errors.Is(err, io.EOF):
		return instance.Facts{}, fmt.Errorf("%w: %s", ErrNotVLLM, instance.Printable(string(bytes.TrimSpace(head)), 80))
	default:
		return instance.Facts{}, err
	}
	return facts, nil
}

// decodeModels reads one object with a member "data".
func decodeModels(dec *json.Decoder, facts *instance.Facts) error {
	if err := expect(dec, '{'); err != nil {
		return err
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		if name != "data" {
			err = dec.Decode(new(json.RawMessage))
		} else {
			err = decodeCards(dec, facts)
		}
		if err != nil {
			return err
		}
	}
	return expect(dec, '}')
}

func decodeCards(dec *json.Decoder, facts *instance.Facts) error {
	switch first, err := dec.Token(); {
	case err != nil:
		return err
	case first == nil: // null
		return nil
	case first != json.Delim('['):
		return errShape
	}
	seen := map[string]bool{}
	for dec.More() {
		var c card
		if err := dec.Decode(&c); err != nil {
			return err
		}
		if c.ID == "" || seen[c.ID] {
			continue
		}
		seen[c.ID] = true
		if len(facts.Models) == 0 {
			facts.MaxModelLen = c.length()
		}
		root := ""
		if c.Root != nil {
			root = *c.Root
		}
		facts.Models, facts.Roots = append(facts.Models, c.ID), append(facts.Roots, root)
	}
	return expect(dec, ']')
}

// length returns max_model_len, or 0 if it is not a positive number. Other servers send null or a float,
// which is no reason to refuse the engine.
func (c *card) length() int {
	var n float64
	if json.Unmarshal(c.MaxModelLen, &n) == nil && n > 0 && n < 1<<31 {
		return int(n)
	}
	return 0
}

func expect(dec *json.Decoder, want json.Delim) error {
	got, err := dec.Token()
	if err == nil && got != want {
		err = errShape
	}
	return err
}
