package dashboard

import (
	"io"
	"net/http"
	"time"
)

// EventsPath is where the stream of events is.
const EventsPath = "/dashboard/events"

const (
	// writeLimit is how long a viewer may take for one event.
	writeLimit = 10 * time.Second
	// again is after how many milliseconds a browser comes back.
	again = "retry: 2000\n\n"
)

// ServeHTTP answers with the events at EventsPath, and everywhere else with the page.
func (b *Board) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == EventsPath {
		b.events(w, r)
		return
	}
	b.page.serve(w, r)
}

// events sends what there is to see until the viewer leaves or is too slow.
func (b *Board) events(w http.ResponseWriter, r *http.Request) {
	one, err := b.viewers.join()
	if err != nil {
		refuse(w, "too many people look at this dashboard: close one of its pages, or look at another proxy")
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
	w.Header().Set("X-Accel-Buffering", "no") // nginx in front would hold events back
	out := http.NewResponseController(w)
	write := func(e []byte) bool {
		_ = out.SetWriteDeadline(time.Now().Add(writeLimit)) // not supported: then none
		_, err := w.Write(e)
		return err == nil && out.Flush() == nil
	}
	// The deadline would stay with the connection, which may serve other requests.
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
	_, _ = io.WriteString(w, why+"\n") // a viewer that left needs no error
}
