package target

import (
	"io"
	"net"
	"net/http"
	"time"
)

// collect returns the URL of a collector of traces, which takes all and does nothing with
// it: what it costs is the harness' and no target's.
func (l *Lab) collect() (string, error) {
	if l.collector != nil {
		return "http://" + l.collector.Addr, nil
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	l.collector = &http.Server{Addr: ln.Addr().String(), ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/x-protobuf")
	})}
	go func() { _ = l.collector.Serve(ln) }() // ends with Close
	return "http://" + l.collector.Addr, nil
}
