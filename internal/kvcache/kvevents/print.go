package kvevents

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Text formats a message like vLLM's example of a subscriber: a line with the time, and a line for each
// event. of is printed after the time unless it is "". Events are printed with all members that were sent,
// under vLLM's names.
func Text(payload []byte, of string) (string, error) {
	var ts float64
	var events []byte
	err := eachPart(payload, func(name string, value []byte) (err error) {
		switch name {
		case "ts":
			ts, err = readFloat(value)
		case "events":
			events = value
		}
		return err
	})
	switch {
	case err != nil:
		return "", err
	case events == nil:
		return "", errShort
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Received event batch at %s%s:\n", strconv.FormatFloat(ts, 'f', -1, 64), of)
	err = eachItem(events, func(_ int, item []byte) error {
		b.WriteString("  - ")
		if err := printEvent(&b, item); err != nil {
			return err
		}
		b.WriteByte('\n')
		return nil
	})
	return b.String(), err
}

func printEvent(b *strings.Builder, p []byte) error {
	kind, rest := "", strings.Builder{}
	add := func(name string, value []byte) error {
		if rest.Len() > 0 {
			rest.WriteString(", ")
		}
		rest.WriteString(instance.Printable(name, 80) + "=")
		return printValue(&rest, value, maxDepth)
	}
	var err error
	if msgp.NextType(p) == msgp.MapType {
		err = eachMember(p, func(key, value []byte) error {
			if string(key) == "type" {
				kind, _, err = msgp.ReadStringBytes(value)
				return err
			}
			return add(string(key), value)
		})
	} else {
		var names []string
		err = eachItem(p, func(i int, item []byte) error {
			switch {
			case i == 0:
				kind, _, err = msgp.ReadStringBytes(item)
				known, _ := readKind(item)
				names = fieldsOf(known)
				return err
			case i <= len(names):
				return add(names[i-1], item)
			}
			return add("field_"+strconv.Itoa(i), item)
		})
	}
	b.WriteString(instance.Printable(kind, 80) + "(" + rest.String() + ")")
	return err
}

// maxDepth bounds the nesting of printed values.
const maxDepth = 32

var errDeep = errors.New("nested too deeply")

// printValue writes a value in Python's notation; digests are in hexadecimal.
func printValue(b *strings.Builder, p []byte, depth int) error {
	if depth == 0 {
		return errDeep
	}
	switch msgp.NextType(p) {
	case msgp.ArrayType:
		b.WriteByte('[')
		defer b.WriteByte(']')
		return eachItem(p, func(i int, item []byte) error {
			if i > 0 {
				b.WriteString(", ")
			}
			return printValue(b, item, depth-1)
		})
	case msgp.MapType:
		b.WriteByte('{')
		defer b.WriteByte('}')
		separator := ""
		return eachMember(p, func(key, value []byte) error {
			fmt.Fprintf(b, "%s'%s': ", separator, instance.Printable(string(key), 80))
			separator = ", "
			return printValue(b, value, depth-1)
		})
	case msgp.StrType:
		s, _, err := msgp.ReadStringBytes(p)
		b.WriteString("'" + strings.ReplaceAll(instance.Printable(s, 0), "'", `\'`) + "'")
		return err
	case msgp.BinType:
		raw, _, err := msgp.ReadBytesZC(p)
		b.WriteString("0x" + hex.EncodeToString(raw))
		return err
	case msgp.NilType:
		b.WriteString("None")
		return nil
	case msgp.BoolType:
		is, _, err := msgp.ReadBoolBytes(p)
		b.WriteString(map[bool]string{true: "True", false: "False"}[is])
		return err
	}
	v, _, err := msgp.ReadIntfBytes(p)
	fmt.Fprint(b, v)
	return err
}
