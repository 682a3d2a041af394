package framing

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"testing"
)

// What goes on does not depend on how it was cut. Of it net/http reads each request up
// to the byte at which the scanner says that the next one begins.
func FuzzScanner(f *testing.F) {
	for _, seed := range []string{
		"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nxyGET / HTTP/1.1\r\nHost: h\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nxy\r\n0\r\nX: y\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"POST /a HTTP/1.1\nHost: h\nContent-Length: 2\nX: a\n b\n\nxy",
		"POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	} {
		f.Add([]byte(seed), byte(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, cut byte) {
		var all, cuts scanner
		good := all.take(data)
		pieces := 0
		for n := int(cut)%16 + 1; pieces < len(data); {
			piece := data[pieces:min(pieces+n, len(data))]
			k := cuts.take(piece)
			if pieces += k; k < len(piece) {
				break
			}
		}
		// The line that is wrong has begun already if it came in pieces.
		if (good == len(data)) != (pieces == len(data)) || pieces < good {
			t.Fatalf("%d of %d bytes, in pieces %d", good, len(data), pieces)
		}
		in := bytes.NewReader(data[:good])
		r := bufio.NewReader(in)
		for {
			req, err := http.ReadRequest(r)
			if err == nil {
				_, err = io.Copy(io.Discard, req.Body)
			}
			if err != nil {
				return // net/http ends the connection
			}
			read := good - in.Len() - r.Buffered()
			var s scanner
			s.take(data[:read])
			if s.at != beyond && (s.at != inHead || s.head.begun || s.whole > 0) {
				t.Fatalf("net/http has read a request at byte %d, the scanner is at %d of %+v", read, s.at, s.head)
			}
			if s.at == beyond {
				t.Fatalf("net/http takes a request that the scanner does not follow, up to byte %d", read)
			}
		}
	})
}
