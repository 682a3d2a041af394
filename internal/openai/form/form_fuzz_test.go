package form_test

import (
	"bytes"
	"mime"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/openai/form"
)

var nameParam = regexp.MustCompile(`(?i) name=`)

// FuzzForm compares Parse with a second form parser, which is as lenient as engines: both find the same
// fields, and no field that controls KV transfers.
func FuzzForm(f *testing.F) {
	for _, r := range recordedForms(f) {
		f.Add(r.Type, r.bytes())
	}
	f.Add("multipart/form-data; boundary=a=b", []byte("--a=b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nR\r\n--a=b--\r\n"))
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		got, err := form.Parse([]string{contentType}, body)
		if err != nil {
			return
		}
		_, params, err := mime.ParseMediaType(contentType)
		if _, boundary, _ := strings.Cut(contentType, "boundary="); err != nil && !strings.ContainsAny(boundary, "\"; \\") {
			params, err = map[string]string{"boundary": boundary}, nil
		}
		require.NoError(t, err, "accepted %q", contentType)
		model, delimiter := "", []byte("\r\n--"+params["boundary"])
		for _, part := range bytes.Split(append([]byte("\r\n"), body...), delimiter)[1:] {
			header, data, _ := bytes.Cut(part, []byte("\r\n\r\n"))
			// Parameter names may have any case; parameter values are compared exactly.
			header = nameParam.ReplaceAll(header, []byte(" name="))
			named := func(name string) bool {
				return bytes.Contains(header, []byte(` name="`+name+`"`)) || bytes.HasSuffix(header, []byte(` name=`+name))
			}
			switch {
			case bytes.HasPrefix(part, []byte("--")):
				require.False(t, got.Model != model && model != "", "model %q, want %q: %q", got.Model, model, body)
				return
			case named("model") && !bytes.Contains(bytes.ToLower(header), []byte("filename")):
				model = string(data)
			case named("vllm_xargs") && bytes.HasPrefix(data, []byte(`{"kv_transfer_params"`)):
				t.Fatalf("accepted a field that controls transfers: %q", body)
			}
		}
	})
}
