package dashboard

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
)

//go:embed assets
var assets embed.FS

// page is the document, made once.
type page struct {
	body   []byte
	etag   string
	policy string // Content-Security-Policy
}

// newPage inserts style and script into the page. It panics if a part is missing, which is
// a build error that every test detects.
func newPage() *page {
	read := func(name string) []byte {
		b, err := assets.ReadFile("assets/" + name)
		if err != nil {
			panic(err)
		}
		return b
	}
	var script bytes.Buffer
	script.WriteString("\n'use strict';\n")
	for _, name := range []string{"dom.js", "store.js", "charts.js", "fleet.js", "details.js", "side.js", "dialogs.js", "main.js"} {
		script.Write(read(name))
	}
	style := append([]byte("\n"), read("style.css")...)
	body := read("page.html")
	body = bytes.Replace(body, []byte("{{style}}"), style, 1)
	body = bytes.Replace(body, []byte("{{script}}"), script.Bytes(), 1)
	return &page{
		body: body, etag: `"` + hash(body)[:24] + `"`,
		policy: strings.Join([]string{
			"default-src 'none'",
			"script-src 'sha256-" + hash(script.Bytes()) + "'",
			"style-src 'sha256-" + hash(style) + "'",
			"connect-src 'self'",
			"img-src data:", // its own icon
			"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
			// No text can become HTML or script, whatever its origin.
			"require-trusted-types-for 'script'", "trusted-types 'none'",
		}, "; "),
	}
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return base64.StdEncoding.EncodeToString(sum[:])
}

func (p *page) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	protect(h)
	h.Set("Content-Security-Policy", p.policy)
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", p.etag)
	if r.Header.Get("If-None-Match") == p.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Length", fmt.Sprint(len(p.body)))
	_, _ = w.Write(p.body) // fails only if the browser has disconnected
}

// protect sets the headers that prevent other pages from using a response.
func protect(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}
