package schema

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// maxDocumentName bounds the name of a document, in bytes.
const maxDocumentName = 256

// CheckDocument checks the name of a document, and that its value is a JSON object of at most 16
// KiB. The error is a *RejectedError.
func CheckDocument(k instance.Key, value []byte) error {
	switch {
	case k.Address == "" || len(k.Address) > maxDocumentName:
		return Rejectf("a name has 1 to %d bytes", maxDocumentName)
	case !utf8.ValidString(k.Address) || strings.ContainsFunc(k.Address, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return Rejectf("the name %s contains spaces or control characters", Quote(k.Address, 80))
	}
	text, err := valueText(value)
	if err != nil {
		return err
	}
	if text == "" || text[0] != '{' || !json.Valid(value) {
		return Rejectf("the value is not a JSON object")
	}
	return nil
}
