package form_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/form"
)

// recordedForm is a form, and what vLLM 0.32 has answered to it; test/real asks again.
type recordedForm struct {
	Name, Type, Body string // body in latin-1
	Status           int
	Answer           string
}

func (r *recordedForm) bytes() []byte {
	var b []byte
	for _, c := range r.Body {
		b = append(b, byte(c))
	}
	return b
}

// types is the header of the request.
func (r *recordedForm) types() []string {
	if r.Type == "" {
		return nil
	}
	return []string{r.Type}
}

func recordedForms(tb testing.TB) []recordedForm {
	tb.Helper()
	raw, err := os.ReadFile("../../../sim/fakevllm/testdata/forms.json")
	if err != nil {
		tb.Fatal(err)
	}
	var list []recordedForm
	if err := json.Unmarshal(raw, &list); err != nil {
		tb.Fatal(err)
	}
	return list
}

// What vLLM reads of a form is what the proxy reads, and what it refuses is refused, here
// or by the engine. The forms of the first list are refused here alone: what is in them
// can be read in two ways, or would steer transfers.
func TestFormsAsVLLMReadsThem(t *testing.T) {
	t.Parallel()
	refusedHere := map[string]string{
		"boundary then junk": "Invalid multipart data.", "boundary in line": "Invalid multipart data.",
		"disp twice": "Invalid multipart data.", "two names": "Invalid multipart data.", "escaped backslash": "Invalid multipart data.",
		"attachment": "Invalid multipart data.", "data begins with boundary": "Invalid multipart data.", "charset utf-7": "must be utf-8",
		"xargs kvp str": "must not hold transfer parameters", "xargs kvp list": "must not hold transfer parameters", "xargs twice": "must not hold transfer parameters", "xargs in escapes": "must not hold transfer parameters",
	}
	for _, r := range recordedForms(t) {
		got, err := form.Parse(r.types(), r.bytes())
		var own *openai.Error
		if errors.As(err, &own) != (err != nil) {
			t.Errorf("%s: not an error of ours: %v", r.Name, err)
			continue
		}
		if multipart := strings.HasPrefix(strings.ToLower(r.Type), "multipart/"); own != nil && own.Final != multipart {
			t.Errorf("%s: an engine is asked about it: %t", r.Name, !own.Final)
		}
		words, strict := refusedHere[r.Name]
		switch {
		case strict && (err == nil || !strings.Contains(own.Message, words)):
			t.Errorf("%s: %v, want %q", r.Name, err, words)
		case strict:
		case r.Status == 200 && err != nil:
			t.Errorf("%s: vLLM takes it: %v", r.Name, err)
		case r.Status == 200:
			var answer struct{ Text string }
			var read struct {
				Model  string
				Stream bool
			}
			if json.Unmarshal([]byte(r.Answer), &answer) != nil || json.Unmarshal([]byte(answer.Text), &read) != nil {
				t.Fatalf("%s: %s", r.Name, r.Answer)
			}
			if got.Model != read.Model || got.Stream != read.Stream {
				t.Errorf("%s: read %+v, vLLM %+v", r.Name, *got, read)
			}
		case own != nil && strings.Contains(r.Answer, `{"detail":`) && string(own.JSON()) != r.Answer:
			t.Errorf("%s: %s, vLLM says %s", r.Name, own.JSON(), r.Answer)
		}
	}
}

// A form without a file is refused, whatever its type is.
func TestFormsWithoutAFile(t *testing.T) {
	t.Parallel()
	for _, r := range recordedForms(t) {
		if r.Name != "no type" && r.Name != "json" && r.Name != "empty" {
			continue
		}
		_, err := form.Parse(r.types(), r.bytes())
		var own *openai.Error
		if !errors.As(err, &own) || own.Status != r.Status || !strings.Contains(own.Message, "file") {
			t.Errorf("%s: %v, want %s", r.Name, err, r.Answer)
		}
	}
	var own *openai.Error
	if _, err := form.Parse([]string{"text/plain", "multipart/form-data; boundary=b"}, []byte("--a--")); !errors.As(err, &own) || !own.Final {
		t.Errorf("two types were taken, or an engine is asked about them: %v", err)
	}
}
