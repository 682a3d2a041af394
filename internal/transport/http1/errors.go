package http1

// Error is the reason why a message is not accepted as HTTP/1.x.
type Error string

func (e Error) Error() string { return string(e) }

// The errors of heads.
const (
	ErrNotHTTP      = Error("not an HTTP/1.0 or HTTP/1.1 answer")
	ErrStatusLine   = Error("malformed status line")
	ErrBareLF       = Error("a line of the head does not end in CR LF")
	ErrManyFields   = Error("the head has more than 255 fields")
	ErrFold         = Error("a folded header line")
	ErrName         = Error("malformed header name")
	ErrValue        = Error("a control character in a header value")
	ErrLength       = Error("malformed or repeated Content-Length")
	ErrEncoding     = Error("a Transfer-Encoding other than chunked")
	ErrBothFramings = Error("both Transfer-Encoding and Content-Length")
)

// The errors of chunked bodies.
const (
	ErrChunkSize    = Error("malformed chunk size")
	ErrExtension    = Error("malformed or oversized chunk extension")
	ErrChunkEnd     = Error("a chunk does not end in CR LF")
	ErrTrailer      = Error("malformed chunk trailer")
	ErrLargeTrailer = Error("the chunk trailer is too large")
)
