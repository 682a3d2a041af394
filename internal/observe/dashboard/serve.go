package dashboard

import (
	"io"
	"net/http"
	"time"
)

// EventsPath is the path of the event stream.
const EventsPath = "/dashboard/events"

const (
	// writeLimit is the write timeout of one event.
	writeLimit = 10 * time.Second
	// again is the reconnection time of browsers in milliseconds.
	again = "retry: 2000\n\n"
)

// ServeHTTP serves the events at EventsPath, and the page at every other path.
func (b *Board) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == EventsPath {
		b.events(w, r)
		return
	}
	b.page.serve(w, r)
}

// events sends events until the viewer disconnects or is too slow.
func (b *Board) events(w http.ResponseWriter, r *http.Request) {
	one := b.viewers.join()
	if one == nil {
		refuse(w, "too many open dashboards: close one, or open that of another proxy")
		return
	}
	defer b.viewers.leave(one)
	select {
	case <-b.closed:
		refuse(w, "this proxy is stopping")
		return
	default:
	}
	protect(w.Header())
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // otherwise nginx buffers events
	out := http.NewResponseController(w)
	write := func(e []byte) bool {
		_ = out.SetWriteDeadline(time.Now().Add(writeLimit)) // not supported: then none
		_, err := w.Write(e)
		return err == nil && out.Flush() == nil
	}
	// The deadline would apply to later requests on the connection.
	defer func() { _ = out.SetWriteDeadline(time.Time{}) }()
	if !write([]byte(again)) {
		return
	}
	for {
		select {
		case <-r.Context().Done():
			return
		case <-b.closed:
			return
		case <-one.slow:
			return
		case e := <-one.events:
			if !write(e) {
				return
			}
		}
	}
}

// refuse sends 503 with Retry-After.
func refuse(w http.ResponseWriter, why string) {
	protect(w.Header())
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Retry-After", "10")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, why+"\n") // fails only if the viewer has disconnected
}
