package form_test

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"testing"

	"github.com/pdmesh/pdmesh/internal/openai/form"
)

// FuzzForm holds what is read of forms against the standard library's reader: a form that
// is taken has the same model, and no other reader finds a field in it that steers.
func FuzzForm(f *testing.F) {
	for _, r := range recordedForms(f) {
		f.Add(r.Type, r.bytes())
	}
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		got, err := form.Parse([]string{contentType}, body)
		if err != nil {
			return
		}
		_, params, err := mime.ParseMediaType(contentType)
		if err != nil {
			return // it is stricter in some ways
		}
		model, named := "", false
		parts := multipart.NewReader(bytes.NewReader(body), params["boundary"])
		for {
			p, err := parts.NextRawPart()
			if err != nil {
				break
			}
			data, err := io.ReadAll(p)
			if err != nil {
				break
			}
			switch name := p.FormName(); {
			case name == "model" && p.FileName() == "":
				model, named = string(data), true
			case name == "vllm_xargs" && bytes.Contains(data, []byte(`"kv_transfer_params"`)) && bytes.HasPrefix(data, []byte(`{"kv`)):
				t.Fatalf("a field that steers was taken: %q", body)
			}
		}
		if named && model != got.Model {
			t.Fatalf("model %q, want %q: %q", got.Model, model, body)
		}
	})
}
