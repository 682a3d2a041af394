package dashboard

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// largest is the limit for the bytes of the whole page.
const largest = 200 << 10

func TestPage(t *testing.T) {
	t.Parallel()
	p := newPage()
	assert.LessOrEqual(t, len(p.body), largest, "the page has %d bytes, more than %d", len(p.body), largest)
	w := httptest.NewRecorder()
	p.serve(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	h := w.Header()
	for name, want := range map[string]string{
		"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Content-Type": "text/html; charset=utf-8",
	} {
		assert.Equal(t, want, h.Get(name), name)
	}
	policy := h.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "require-trusted-types-for 'script'"} {
		assert.Contains(t, policy, want)
	}
	assert.NotContains(t, policy, "unsafe")
	// The digests match the contents of the page.
	for _, tag := range []string{"script", "style"} {
		m := regexp.MustCompile(`(?s)<`+tag+`>(.*?)</`+tag+`>`).FindAllSubmatch(w.Body.Bytes(), -1)
		require.Equal(t, 1, len(m), "%d times <%s>", len(m), tag)
		assert.Contains(t, policy, tag+"-src 'sha256-"+hash(m[0][1])+"'")
	}
	again := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	again.Header.Set("If-None-Match", h.Get("ETag"))
	w = httptest.NewRecorder()
	if p.serve(w, again); w.Code != http.StatusNotModified || w.Body.Len() > 0 {
		t.Errorf("unchanged: %d with %d bytes", w.Code, w.Body.Len())
	}
}

// The page loads nothing from other hosts, never parses text as HTML, and has no code in attributes.
func TestPage_NoUnsafeContent(t *testing.T) {
	t.Parallel()
	body := newPage().body
	for _, bad := range []string{
		`innerHTML`, `outerHTML`, `insertAdjacentHTML`, `document\.write`, `\beval\(`, `new Function`, `document\.cookie`,
		`<[a-z]+[^>]*\son[a-z]+=`, `<[a-z]+[^>]*\sstyle=`, `<script[^>]+src`, `<link[^>]+stylesheet`, `@import`, `url\(`, `setAttribute\('style'`,
	} {
		m := regexp.MustCompile(bad).Find(body)
		assert.True(t, m == nil, "the page has %q", m)
	}
	for _, m := range regexp.MustCompile(`https?://[^\s'"<>)]+`).FindAll(body, -1) {
		if !bytes.HasPrefix(m, []byte("http://www.w3.org/2000/svg")) { // a name, not an address
			t.Errorf("the page names %s", m)
		}
	}
}
