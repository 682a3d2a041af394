package flame

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// ErrProfile is wrapped when data is no profile.
var ErrProfile = errors.New("not a CPU profile")

// maxProfile bounds an unpacked profile.
const maxProfile = 256 << 20

// Folded are stacks, outermost function first and joined by semicolons, with
// the sum of their last sample value (nanoseconds in a CPU profile).
type Folded map[string]int64

// The field numbers of profile.proto that are read.
const (
	profileSample, profileLocation, profileFunction, profileString = 2, 4, 5, 6
	sampleLocation, sampleValue                                    = 1, 2
	locationID, locationLine                                       = 1, 4
	lineFunction                                                   = 1
	functionID, functionName                                       = 1, 2
)

// Parse reads a profile.
func Parse(data []byte) (Folded, error) {
	if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrProfile, err)
		}
		if data, err = io.ReadAll(io.LimitReader(z, maxProfile)); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrProfile, err)
		}
	}
	var (
		text      []string
		names     = make(map[uint64]uint64)   // of functions, as indices of text
		functions = make(map[uint64][]uint64) // of locations, innermost first
		samples   []sample
	)
	err := fields(data, func(n protowire.Number, _ uint64, b []byte) error {
		switch n {
		case profileString:
			text = append(text, string(b))
		case profileFunction:
			var id, name uint64
			err := fields(b, func(n protowire.Number, v uint64, _ []byte) error {
				switch n {
				case functionID:
					id = v
				case functionName:
					name = v
				}
				return nil
			})
			names[id] = name
			return err
		case profileLocation:
			var id uint64
			var lines []uint64
			err := fields(b, func(n protowire.Number, v uint64, b []byte) error {
				switch n {
				case locationID:
					id = v
				case locationLine:
					return fields(b, func(n protowire.Number, v uint64, _ []byte) error {
						if n == lineFunction {
							lines = append(lines, v)
						}
						return nil
					})
				}
				return nil
			})
			functions[id] = lines
			return err
		case profileSample:
			var s sample
			err := fields(b, func(n protowire.Number, v uint64, b []byte) error {
				switch n {
				case sampleLocation:
					s.stack = numbers(s.stack, v, b)
				case sampleValue:
					s.values = numbers(s.values, v, b)
				}
				return nil
			})
			samples = append(samples, s)
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(samples) == 0 || len(text) == 0 {
		return nil, fmt.Errorf("%w: it has no samples", ErrProfile)
	}
	folded := make(Folded)
	for _, s := range samples {
		var stack []string
		for _, location := range s.stack {
			for _, f := range functions[location] {
				name := "?"
				if i := names[f]; i < uint64(len(text)) && text[i] != "" {
					name = strings.ReplaceAll(text[i], ";", ",")
				}
				stack = append(stack, name)
			}
		}
		if len(s.values) == 0 || len(stack) == 0 {
			continue
		}
		slices.Reverse(stack)
		folded[strings.Join(stack, ";")] += int64(s.values[len(s.values)-1])
	}
	return folded, nil
}

type sample struct{ stack, values []uint64 }

// numbers appends a repeated number, packed or not.
func numbers(list []uint64, v uint64, packed []byte) []uint64 {
	if packed == nil {
		return append(list, v)
	}
	for len(packed) > 0 {
		v, n := protowire.ConsumeVarint(packed)
		if n < 0 {
			return list
		}
		list = append(list, v)
		packed = packed[n:]
	}
	return list
}

// fields calls f for every field of a message: with a number, or with bytes.
func fields(b []byte, f func(n protowire.Number, v uint64, bytes []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("%w: %w", ErrProfile, protowire.ParseError(n))
		}
		b = b[n:]
		var v uint64
		var data []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			data, n = protowire.ConsumeBytes(b)
			if data == nil {
				data = []byte{}
			}
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return fmt.Errorf("%w: %w", ErrProfile, protowire.ParseError(n))
		}
		b = b[n:]
		if err := f(num, v, data); err != nil {
			return err
		}
	}
	return nil
}
