package http1

// maxCached bounds the size in bytes of the fields that a HeadCache keeps.
const maxCached = 1 << 10

// HeadCache caches the last parsed fields of one connection, since peers often repeat
// them. Fields with the same bytes, except for the digits of Content-Length, share one
// Header. The zero value is an empty cache.
type HeadCache struct {
	fields []byte
	digits span // of Content-Length in fields; empty if there is none
	http10 bool
	head   Head
}

// Parse parses the fields of a head and does not modify them. http10 is true for an
// HTTP/1.0 message.
func (c *HeadCache) Parse(fields []byte, http10 bool) (Head, error) {
	if length, same := c.match(fields); same && http10 == c.http10 {
		h := c.head
		h.Length = length
		return h, nil
	}
	h, digits, err := parseFields(fields, http10)
	if err != nil || len(fields) > maxCached {
		*c = HeadCache{}
	} else {
		*c = HeadCache{fields: append(c.fields[:0], fields...), digits: digits, http10: http10, head: h}
	}
	return h, err
}

// match reports whether fields are the cached ones, and returns their Content-Length.
func (c *HeadCache) match(fields []byte) (length int64, same bool) {
	before, behind := c.fields[:c.digits.from], c.fields[c.digits.to:]
	digits := len(fields) - len(before) - len(behind)
	if len(c.fields) == 0 || digits < 0 || string(fields[:len(before)]) != string(before) || string(fields[len(before)+digits:]) != string(behind) {
		return 0, false
	}
	if c.digits.to == 0 {
		return c.head.Length, digits == 0
	}
	return parseLength(fields[len(before) : len(before)+digits])
}
