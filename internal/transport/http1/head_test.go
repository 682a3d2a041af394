package http1

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHeadLen(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		data string
		want int
		err  error
	}{
		{"", 0, nil}, {"GET", 0, nil}, {"GET\r", 0, nil}, {"GET\r\n", 0, nil}, {"GET\r\n\r", 0, nil}, {"A\r\nB: c\r\nD", 0, nil},
		{"\r\n", 2, nil}, {"GET\r\n\r\nbody\n", 7, nil}, {"A\r\nB: c\r\n\r\n\r\n", 11, nil},
		{"\n", 0, ErrBareLF}, {"A\n\n", 0, ErrBareLF}, {"A\r\nB\nC: d\r\n\r\n", 0, ErrBareLF}, {"A\r\n\n", 0, ErrBareLF},
	} {
		n, err := HeadLen([]byte(tc.data), 0)
		assert.True(t, n == tc.want && errors.Is(err, tc.err), "%q: %d, %v", tc.data, n, err)
		seen := 0
		for i := 1; i <= len(tc.data); i++ { // as it arrives, byte by byte
			n, err := HeadLen([]byte(tc.data[:i]), seen)
			seen = i
			if n > 0 || err != nil {
				assert.Equal(t, tc.want, n, "%q by bytes", tc.data)
				assert.ErrorIs(t, err, tc.err, "%q by bytes", tc.data)
				break
			}
		}
	}
}

func TestSplitHead(t *testing.T) {
	t.Parallel()
	for head, want := range map[string][2]string{
		"\r\n":                      {"", ""},
		"A b\r\n\r\n":               {"A b", ""},
		"A b\r\nC: d\r\n\r\n":       {"A b", "C: d\r\n"},
		"A b\r\nC: d\r\nE:\r\n\r\n": {"A b", "C: d\r\nE:\r\n"},
	} {
		start, fields := SplitHead([]byte(head))
		assert.True(t, string(start) == want[0] && string(fields) == want[1], "%q: %q and %q", head, start, fields)
	}
}

func TestFieldsAccepted(t *testing.T) {
	t.Parallel()
	const fields = "date: now\r\nX-rEQUEST-iD:a\r\nset-cookie: \t a \t\r\nSet-Cookie: b\r\nSET-COOKIE: c\r\nx-empty:\r\ncontent-length:  07 \r\nconnection: x, Close ,KEEP-alive\r\n"
	in := []byte(fields)
	got, _, err := parseFields(in, false)
	want := Head{Length: 7, Close: true, KeepAlive: true, Header: http.Header{
		"Date": {"now"}, "X-Request-Id": {"a"}, "Set-Cookie": {"a", "b", "c"}, "X-Empty": {""}, "Connection": {"x, Close ,KEEP-alive"},
	}}
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprint(want), fmt.Sprint(got))
	assert.Equal(t, fields, string(in), "the fields are now")
	// Values share an array: adding to one must not write into the next.
	got.Header.Add("Date", "later")
	assert.Equal(t, "a", got.Header.Get("X-Request-Id"), "adding a value changed another one")
	assert.Equal(t, "", got.Header.Get("X-Empty"), "adding a value changed another one")
	for name, values := range got.Header {
		assert.False(t, name != "Date" && cap(values) != len(values),
			"%s has room for more, which copies of the header would share", name)
	}
	if h, _, err := parseFields([]byte("Transfer-ENCODING: Chunked\r\n"), false); err != nil || !h.Chunked || h.Length != -1 || len(h.Header) > 0 {
		t.Errorf("%+v, %v", h, err)
	}
	if h, _, err := parseFields(nil, false); err != nil || h.Length != -1 {
		t.Errorf("no fields: %+v, %v", h, err)
	}
}

func TestAppendField(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, value, want string
		err               error
	}{
		{"X-A", "b c\t\xff", "X-A: b c\t\xff\r\n", nil},
		{"X-A", "", "X-A: \r\n", nil},
		{"", "b", "", ErrName}, {"X A", "b", "", ErrName}, {"X:", "b", "", ErrName}, {"X\r\nY", "b", "", ErrName},
		{"X", "secret\r\nY: b", "", ErrValue}, {"X", "secret\n", "", ErrValue}, {"X", "secret\x00", "", ErrValue},
	} {
		b, err := AppendField([]byte("before"), tc.name, tc.value)
		assert.Equal(t, "before"+tc.want, string(b), "%q: %q", tc.name, tc.value)
		assert.ErrorIs(t, err, tc.err, "%q: %q", tc.name, tc.value)
		assert.False(t, err != nil && strings.Contains(err.Error(), "secret"), "the error shows the value: %v", err)
	}
}
