package httpapi

import (
	"net/http"
	"testing"
)

// BenchmarkSetHeaders measures the overhead of CORS for a request to the engines.
func BenchmarkSetHeaders(b *testing.B) {
	all := []string{"*"}
	page := http.Header{"Origin": {"https://a.example"}}
	for name, bc := range map[string]struct {
		options CORS
		header  http.Header
	}{
		"off":         {CORS{Methods: all, Headers: all}, page},
		"no page":     {CORS{Origins: all, Methods: all, Headers: all}, http.Header{}},
		"a page":      {CORS{Origins: all, Methods: all, Headers: all}, page},
		"of a origin": {CORS{Origins: []string{"https://a.example"}, Methods: all, Headers: all}, page},
	} {
		b.Run(name, func(b *testing.B) {
			c, r, answer := newCORS(bc.options), &http.Request{Header: bc.header}, http.Header{}
			b.ReportAllocs()
			for b.Loop() {
				c.setHeaders(answer, r)
				clear(answer)
			}
		})
	}
}
