// Package jsontext appends JSON as pydantic writes it.
package jsontext

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Raw is JSON text; nil is null.
type Raw []byte

// Append appends a template of JSON in which the arguments replace the dollar signs: a string
// quoted, a number, a boolean, a list of integers, Raw as it is, and nil as null. It is for
// whole answers; the events of tokens do not allocate.
func Append(dst []byte, template string, args ...any) []byte {
	for _, arg := range args {
		before, rest, _ := strings.Cut(template, "$")
		dst, template = append(dst, before...), rest
		switch v := arg.(type) {
		case nil:
			dst = append(dst, "null"...)
		case string:
			dst = AppendString(dst, v)
		case []int:
			dst = AppendInts(dst, v)
		case Raw:
			if v == nil {
				v = Raw("null")
			}
			dst = append(dst, v...)
		case int, int64, bool:
			dst = fmt.Append(dst, v)
		case float64:
			dst = strconv.AppendFloat(dst, v, 'f', -1, 64)
		default:
			panic(fmt.Sprintf("no JSON for %T", arg))
		}
	}
	return append(dst, template...)
}

// AppendString quotes s as pydantic does: everything but quotes,
// backslashes and control characters stays itself, also non-ASCII and '<'.
func AppendString(dst []byte, s string) []byte {
	return append(AppendText(append(dst, '"'), s), '"')
}

// AppendText is the inside of a JSON string. Invalid UTF-8 becomes U+FFFD.
func AppendText[T string | []byte](dst []byte, s T) []byte {
	for _, r := range string(s) {
		if r >= ' ' && r != '"' && r != '\\' {
			dst = utf8.AppendRune(dst, r)
		} else if i := strings.IndexRune("\b\t\n\f\r\"\\", r); i >= 0 {
			dst = append(dst, '\\', `btnfr"\`[i])
		} else {
			dst = fmt.Appendf(dst, `\u%04x`, r)
		}
	}
	return dst
}

// AppendList appends elements with commas between them.
func AppendList[T any](dst []byte, list []T, element func(dst []byte, i int, v T) []byte) []byte {
	for i, v := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = element(dst, i, v)
	}
	return dst
}

// AppendInts appends a list of integers.
func AppendInts(dst []byte, ids []int) []byte {
	dst = AppendList(append(dst, '['), ids, func(dst []byte, _, id int) []byte { return strconv.AppendInt(dst, int64(id), 10) })
	return append(dst, ']')
}
