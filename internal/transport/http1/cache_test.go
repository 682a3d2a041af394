package http1

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const usualFields = "date: Tue, 24 Nov 2026 06:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: 12\r\ncontent-type: application/json\r\n"

// parsed parses valid fields with a cache.
func parsed(t *testing.T, c *HeadCache, fields string) Head {
	t.Helper()
	h, err := c.Parse([]byte(fields), false)
	require.NoError(t, err)
	return h
}

// same reports whether two heads share one Header.
func same(a, b Head) bool {
	return reflect.ValueOf(a.Header).Pointer() == reflect.ValueOf(b.Header).Pointer()
}

func TestHeadCache(t *testing.T) {
	t.Parallel()
	var c HeadCache
	first := parsed(t, &c, usualFields)
	longer := parsed(t, &c, strings.Replace(usualFields, "12\r", "345678\r", 1))
	assert.True(t, first.Length == 12 && longer.Length == 345678 && same(first, longer),
		"another length only: %+v, then %+v", first, longer)
	later := parsed(t, &c, strings.Replace(usualFields, "06:00:00", "06:00:01", 1))
	if same(first, later) || later.Header.Get("Date") != "Tue, 24 Nov 2026 06:00:01 GMT" || first.Header.Get("Date") != "Tue, 24 Nov 2026 06:00:00 GMT" {
		t.Errorf("another date: %+v, then %+v", first, later)
	}
	_, err := c.Parse([]byte(strings.Replace(usualFields, "12\r", "1x\r", 1)), false)
	assert.Error(t, err, "a malformed length is taken behind a good one")
	long := "X: " + strings.Repeat("x", maxCached) + "\r\n"
	assert.True(t, !same(parsed(t, &c, long), parsed(t, &c, long)) && c.fields == nil && c.head.Header == nil,
		"long fields are remembered")
	const chunked = "Transfer-Encoding: chunked\r\n"
	assert.True(t, parsed(t, &c, chunked).Chunked, "not chunked")
	_, err = c.Parse([]byte(chunked), true)
	assert.Error(t, err, "chunks are taken in HTTP/1.0 behind the same fields in HTTP/1.1")
}

// cacheSeeds returns fields to be cached, and fields that may follow them.
func cacheSeeds() []string {
	return []string{
		usualFields, "Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n", "content-length: \t3 \r\nX: 1\r\nX: 2\r\n",
		"Connection: close\r\n", "Connection: keep-alive\r\nContent-Length: 1\r\n", "X: Content-Length: 5\r\nContent-Length: 7\r\n", "",
	}
}

// FuzzHeadCache checks that fields are parsed after others as without a cache.
func FuzzHeadCache(f *testing.F) {
	for _, a := range cacheSeeds() {
		for _, b := range cacheSeeds() {
			f.Add([]byte(a), []byte(b), false)
		}
	}
	f.Fuzz(checkHeadCache)
}

func checkHeadCache(t *testing.T, first, second []byte, http10 bool) {
	t.Helper()
	var c HeadCache
	_, _ = c.Parse(first, false)
	before := string(second)
	got, err := c.Parse(second, http10)
	want, _, wantErr := parseFields(second, http10)
	require.True(t, err == wantErr && fmt.Sprint(got) == fmt.Sprint(want) && string(second) == before,
		"%q behind %q: %+v, %v, alone %+v, %v", second, first, got, err, want, wantErr)
}

// TestCacheNeighbours removes, doubles and replaces each byte of the fields,
// with bytes that matter. A fuzzer would find these changes only by chance.
func TestCacheNeighbours(t *testing.T) {
	t.Parallel()
	for _, s := range cacheSeeds() {
		for i := range len(s) {
			for _, next := range []string{s[:i] + s[i+1:], s[:i] + s[i:i+1] + s[i:]} {
				checkHeadCache(t, []byte(s), []byte(next), false)
			}
			for _, c := range "\r\n \t\x00:;,0+9C" {
				checkHeadCache(t, []byte(s), []byte(s[:i]+string(c)+s[i+1:]), false)
				checkHeadCache(t, []byte(s), []byte(s[:i]+string(c)+s[i:]), i%2 == 1)
			}
		}
	}
}
