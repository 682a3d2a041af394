package pydantic

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// The errors that the proxy makes of an invalid request are those of vLLM 0.32, to
// the letter where that is possible. There are two kinds: what pydantic refuses, of
// type "Bad Request", and what vLLM itself refuses, of type BadRequestError.

// Complaint is what pydantic says of a value.
type Complaint struct{ kind, msg string } //nolint:errname // pydantic has a name for it

func (c *Complaint) Error() string { return c.msg }

// Pydantic's complaints about the types of the fields that are read.
var (
	ErrIntType     = &Complaint{"int_type", "Input should be a valid integer"}
	errIntText     = &Complaint{"int_parsing", "Input should be a valid integer, unable to parse string as an integer"}
	errIntFraction = &Complaint{"int_from_float", "Input should be a valid integer, got a number with a fractional part"}
	errIntInfinite = &Complaint{"finite_number", "Input should be a finite number"}
	errIntSize     = &Complaint{"int_parsing_size", "Unable to parse input string as an integer, exceeded maximum size"}
	ErrBoolType    = &Complaint{"bool_type", "Input should be a valid boolean"}
	errBoolText    = &Complaint{"bool_parsing", "Input should be a valid boolean, unable to interpret input"}
	ErrStringType  = &Complaint{"string_type", "Input should be a valid string"}
	ErrListType    = &Complaint{"list_type", "Input should be a valid list"}
	ErrNoObject    = &Complaint{"model_attributes_type", "Input should be a valid dictionary or object to extract fields from"}
	ErrDictType    = &Complaint{"dict_type", "Input should be a valid dictionary"}
	ErrNotPositive = &Complaint{"value_error", "Value error, max_tokens must be positive"}
	ErrMissing     = &Complaint{"missing", "Field required"}
)

// Invalid is the error of complaints about one value, which is shown as input. loc is
// the dotted path to it, "" for the body itself.
func Invalid(loc, input string, why ...*Complaint) *openai.Error {
	loc = strings.TrimSuffix("body."+loc, ".")
	texts := make([]string, len(why))
	for i, c := range why {
		texts[i] = c.About(loc, input)
	}
	return Errors(loc, texts...)
}

// About is the complaint in pydantic's words.
func (c *Complaint) About(loc, input string) string {
	return fmt.Sprintf("{'type': %s, 'loc': %s, 'msg': %s, 'input': %s}", PyQuote(c.kind), PyQuote(loc), PyQuote(c.msg), PyQuote(input))
}

func Errors(param string, complaints ...string) *openai.Error {
	errors := "errors"
	if len(complaints) == 1 {
		errors = "error"
	}
	return &openai.Error{Status: http.StatusBadRequest, Type: openai.TypeInvalid, Param: param,
		Message: fmt.Sprintf("%d validation %s:\n  %s", len(complaints), errors, strings.Join(complaints, "\n  "))}
}

// BadRequest is vLLM's own refusal. Where it names the parameter, that stands behind
// the sentence too, with the value where it is told.
func BadRequest(param, value, message string) *openai.Error {
	switch {
	case value != "":
		message += " (parameter=" + param + ", value=" + value + ")"
	case param != "":
		message += " (parameter=" + param + ")"
	}
	return &openai.Error{Status: http.StatusBadRequest, Type: openai.TypeBadRequest, Param: param, Message: message}
}

// NotJSON is the answer to a request whose Content-Type is another.
func NotJSON() *openai.Error {
	return Errors("", "Unsupported Media Type: Only 'application/json' is allowed")
}

// maxAliases bounds the names that an error lists. vLLM lists its base models only; a fleet may
// have thousands of LoRA adapters.
const maxAliases = 100

// UnknownModel is the answer to a request for a model that no instance serves; served are
// the names that would do.
func UnknownModel(model string, served []string) *openai.Error {
	if n := len(served); n > maxAliases {
		served = append(slices.Clone(served[:maxAliases]), fmt.Sprintf("and %d more", n-maxAliases))
	}
	return &openai.Error{Status: http.StatusNotFound, Type: openai.TypeNotFound, Param: "model",
		Message: fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", model, strings.Join(served, ", "))}
}

// maxShownInput bounds the text of an invalid value that is shown.
const maxShownInput = 200

// Shown describes a value that was scanned, as vLLM's handler does.
func Shown(raw []byte) string {
	var text string
	switch raw[0] {
	case '{':
		return fmt.Sprintf("<dict of %d items>", CountMembers(raw))
	case '[':
		return fmt.Sprintf("<list of %d items>", countElements(raw))
	case 'n':
		return "None"
	case 't':
		return "True"
	case 'f':
		return "False"
	case '"':
		text = string(jsonscan.Unquote(raw))
	default:
		text = pyNumber(raw)
	}
	n := 0
	for i := range text {
		if n == maxShownInput {
			return text[:i] + "...[truncated]"
		}
		n++
	}
	return text
}

// pyNumber spells a number as Python does.
func pyNumber(raw []byte) string {
	if !bytes.ContainsAny(raw, ".eE") {
		return string(raw)
	}
	f, _ := strconv.ParseFloat(string(raw), 64) // out of range: infinite
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case f == math.Trunc(f) && math.Abs(f) < 1e16:
		return strconv.FormatFloat(f, 'f', 1, 64)
	case math.Abs(f) >= 1e-4 && math.Abs(f) < 1e16:
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return strconv.FormatFloat(f, 'e', -1, 64)
}

func CountMembers(raw []byte) int {
	names := map[string]bool{} // of equal names Python keeps one
	s := jsonscan.Scanner{Text: raw}
	_, _ = s.Members(0, 0, func(m jsonscan.Member) error { // scanned before: cannot fail
		names[string(jsonscan.Unquote(raw[m.Key:m.KeyEnd]))] = true
		return nil
	})
	return len(names)
}

func countElements(raw []byte) int {
	s := jsonscan.Scanner{Text: raw}
	i, n := s.Space(1), 0
	for raw[i] != ']' {
		n++
		i, _ = s.Value(i, 0) // scanned before: cannot fail
		if i = s.Space(i); raw[i] == ',' {
			i = s.Space(i + 1)
		}
	}
	return n
}

// PyQuote spells a text as Python's repr does.
func PyQuote(s string) string {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	b := append(make([]byte, 0, len(s)+2), quote)
	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r == ' ' || unicode.IsPrint(r):
			b = utf8.AppendRune(b, r)
		case r < 0x100:
			b = fmt.Appendf(b, `\x%02x`, r)
		case r < 0x10000:
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = fmt.Appendf(b, `\U%08x`, r)
		}
	}
	return string(append(b, quote))
}
