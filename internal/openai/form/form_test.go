package form_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/form"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// recordedForm is a form and the answer of vLLM 0.32 to it; test/real records it again.
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

// types returns the header of the request.
func (r *recordedForm) types() []string {
	if r.Type == "" {
		return nil
	}
	return []string{r.Type}
}

func recordedForms(tb testing.TB) []recordedForm {
	tb.Helper()
	raw := testkit.ReadFile(tb, "../../../sim/fakevllm/testdata/forms.json")
	var list []recordedForm
	require.NoError(tb, json.Unmarshal(raw, &list))
	return list
}

// TestForms_SameAsVLLM checks that the proxy reads a form as vLLM does, and that a form which
// vLLM refuses is refused by the proxy or by the engine. The forms in refusedHere are refused by
// the proxy although vLLM accepts them: they are ambiguous, or control KV transfers.
func TestForms_SameAsVLLM(t *testing.T) {
	t.Parallel()
	const oneDisposition, malformed, duplicate = "one Content-Disposition", "malformed header of a part", "duplicate parameter name"
	refusedHere := map[string]string{
		"boundary then junk": malformed, "boundary in line": malformed,
		"disp twice": oneDisposition, "two names": duplicate, "escaped backslash": duplicate,
		"attachment": "must be form-data", "data begins with boundary": malformed, "charset utf-7": "must be utf-8",
		"xargs kvp str": "must not hold transfer parameters", "xargs kvp list": "must not hold transfer parameters", "xargs twice": "must not hold transfer parameters", "xargs in escapes": "must not hold transfer parameters",
	}
	for _, r := range recordedForms(t) {
		got, err := form.Parse(r.types(), r.bytes())
		var own *openai.Error
		if errors.As(err, &own) != (err != nil) {
			t.Errorf("%s: not an error of ours: %v", r.Name, err)
			continue
		}
		multipart := strings.HasPrefix(strings.ToLower(r.Type), "multipart/")
		assert.False(t, own != nil && own.Final != multipart, "%s: whether an engine is asked about it: %+v", r.Name, own)
		assert.False(t, own != nil && own.Status != 400, "%s: %+v", r.Name, own)
		message, strict := refusedHere[r.Name]
		switch {
		case strict && (err == nil || !strings.Contains(own.Message, message)):
			t.Errorf("%s: %v, want %q", r.Name, err, message)
		case strict:
		case r.Status == 200 && err != nil:
			t.Errorf("%s: vLLM accepts it: %v", r.Name, err)
		case r.Status == 200:
			var answer struct{ Text string }
			var read struct {
				Model  string
				Stream bool
			}
			require.NoError(t, json.Unmarshal([]byte(r.Answer), &answer), r.Name)
			require.NoError(t, json.Unmarshal([]byte(answer.Text), &read), r.Name)
			if got.Model != read.Model || got.Stream != read.Stream {
				t.Errorf("%s: read %+v, vLLM %+v", r.Name, *got, read)
			}
		case own == nil && strings.Contains(r.Answer, `{"detail":`) && r.Name != "fold": // the engine refuses this one
			t.Errorf("%s: accepted, vLLM answers %s", r.Name, r.Answer)
		}
	}
}

// TestFormsWithoutAFile checks that a form without a file is refused, whatever its type is.
func TestFormsWithoutAFile(t *testing.T) {
	t.Parallel()
	for _, r := range recordedForms(t) {
		if r.Name != "no type" && r.Name != "json" && r.Name != "no file" {
			continue
		}
		_, err := form.Parse(r.types(), r.bytes())
		var own *openai.Error
		assert.True(t, errors.As(err, &own) && own.Status == r.Status && strings.Contains(own.Message, "file"),
			"%s: %v, want %s", r.Name, err, r.Answer)
	}
	var own *openai.Error
	if _, err := form.Parse([]string{"text/plain", "multipart/form-data; boundary=b"}, []byte("--a--")); !errors.As(err, &own) || !own.Final {
		t.Errorf("two types were accepted, or an engine is asked about them: %v", err)
	}
}

// TestCharsets checks that a charset in which names of fields are the same bytes as in UTF-8 is accepted. Apache
// HttpClient 5 sends ISO-8859-1 by default.
func TestCharsets(t *testing.T) {
	t.Parallel()
	const body = "--B\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n" +
		"--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nR\r\n--B--\r\n"
	for charset, accepted := range map[string]bool{"ISO-8859-1": true, "US-ASCII": true, "utf8": true, "UTF-8": true, "utf-7": false, "utf-16": false, "cp037": false} {
		f, err := form.Parse([]string{"multipart/form-data; charset=" + charset + "; boundary=B"}, []byte(body))
		assert.True(t, (err == nil) == accepted && (!accepted || f.Model == "m"), "%s: %+v, %v", charset, f, err)
	}
}

// TestBoundaries checks that a boundary that should be quoted is accepted without quotes, as by engines.
func TestBoundaries(t *testing.T) {
	t.Parallel()
	for boundary, accepted := range map[string]bool{
		"----=_Part_1.2": true, "a/b:c?d": true, "a(b)": true, `"a=b"`: true,
		"a=b; boundary=c": false, "a=b c": false, `a="b"`: false, `a=\b`: false, "a=b*": false, "a=<b>": false,
	} {
		b := strings.Trim(boundary, `"`)
		body := "--" + b + "\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--" + b +
			"\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nR\r\n--" + b + "--\r\n"
		f, err := form.Parse([]string{"multipart/form-data; charset=utf-8; boundary=" + boundary}, []byte(body))
		assert.True(t, (err == nil) == accepted && (!accepted || f.Model == "m"), "%s: %+v, %v", boundary, f, err)
	}
}

// TestFileNames checks that a file name which a client does not quote or escape is accepted, as by engines.
func TestFileNames(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		disposition string
		accepted    bool
	}{
		{`name="file"; filename="a "good" one.wav"`, true}, // PHP's Guzzle
		{`name="file"; filename=my file (1).wav`, true},
		{`name="file"; filename=ä.wav`, true},
		{`name="file"; filename="a" b"; name="vllm_xargs"`, false},
		{`name="file"; filename="a" b\"`, false},
		{`filename="a" b"; name="file"`, false},
		{`filename="a" b"`, false},
		{`name="vllm_xargs"; filename="a" b"`, false},
	} {
		body := "--B\r\nContent-Disposition: form-data; " + tc.disposition + "\r\n\r\n{\"kv_transfer_params\":1}\r\n--B--\r\n"
		_, err := form.Parse([]string{"multipart/form-data; boundary=B"}, []byte(body))
		assert.Equal(t, tc.accepted, err == nil, "%s: %v", tc.disposition, err)
	}
}

// TestAmbiguousForms checks forms that parsers read in different ways.
func TestAmbiguousForms(t *testing.T) {
	t.Parallel()
	const file = "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nR\r\n--B--\r\n"
	field := func(disposition, value string) string {
		return "--B\r\n" + disposition + "\r\n\r\n" + value + "\r\n" + file
	}
	const steering = `{"kv_transfer_params":"x"}`
	for name, body := range map[string]string{
		"encoded name":           field(`Content-Disposition: form-data; name="vllm_xargs"; name*=utf-8''a`, steering),
		"encoded name, in parts": field(`Content-Disposition: form-data; name="a" ; NAME*0*=utf-8''vllm_; name*1="xargs"`, steering),
		"line end in a field":    field("X: a\nContent-Disposition: form-data; name=\"a\"\n\ny\r\nContent-Disposition: form-data; name=\"vllm_xargs\"", steering),
		"CR in a field":          field("X: a\rContent-Disposition: form-data; name=\"vllm_xargs\"\r\nContent-Disposition: form-data; name=\"a\"", steering),
		"escaped backslash":      field(`Content-Disposition: form-data; name="a"; x="b\\"; y="; name=\"vllm_xargs"`, steering),
		"field of 2 MiB":         field(`Content-Disposition: form-data; name="model"`, strings.Repeat("m", 2<<20)),
		"long header":            field(`X: `+strings.Repeat("x", 5000)+"\r\n"+`Content-Disposition: form-data; name="a"`, "y"),
	} {
		if f, err := form.Parse([]string{"multipart/form-data; boundary=B"}, []byte(body)); err == nil {
			t.Errorf("%s: accepted: %+v", name, *f)
		}
	}
	for _, contentType := range []string{`multipart/form-data; boundary=B; boundary*=utf-8''C`, `multipart/form-data; boundary="\B"`} {
		_, err := form.Parse([]string{contentType}, []byte(file))
		assert.Error(t, err, "%s: accepted", contentType)
	}
}
