package fakevllm

import (
	"crypto/subtle"
	"net/http"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/connector"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
	"github.com/pdmesh/pdmesh/sim/fakevllm/responses"
)

const (
	pathModels = "/v1/models"

	pathEventSources = "/kv_event_sources"

	pathSleeping = "/is_sleeping"
	pathPaused   = "/is_paused"

	pathTranscriptions = "/v1/audio/transcriptions"
	pathTranslations   = "/v1/audio/translations"
)

// method is the only method a route has; "" for an unknown route.
func method(path string, o *Options) string {
	get, post := http.MethodGet, http.MethodPost
	minor := connector.Minor(o.Version)
	if _, cancel, ok := responses.Path(path); ok && cancel {
		return post
	} else if ok {
		return get
	}
	for _, r := range []struct {
		method string
		served bool
		paths  []string
	}{
		{post, true, []string{request.PathCompletions, request.PathChat, request.PathResponses, request.PathMessages, request.PathGenerate, "/tokenize", "/detokenize"}},
		{get, true, []string{pathModels, "/health", "/ping", "/version", "/metrics", "/load"}},
		{post, o.Transcription, []string{pathTranscriptions, pathTranslations}},
		{get, o.TokenizerInfo, []string{"/tokenizer_info"}},
		{get, minor >= 31, []string{pathEventSources}},
		{post, o.RuntimeLoRA, []string{pathLoadAdapter, pathUnloadAdapter}},
		{get, o.DevMode, []string{pathSleeping}},
		{get, o.DevMode && minor >= 23, []string{pathPaused}},
		{"admin", o.Admin, []string{pathFaults, pathState, pathCore}},
	} {
		if r.served && slices.Contains(r.paths, path) {
			return r.method
		}
	}
	return ""
}

// ServeHTTP is one request to this incarnation.
func (l *life) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !l.enter() {
		panic(http.ErrAbortHandler)
	}
	defer l.handlers.Done()
	s := l.server
	w.Header().Set("Server", "uvicorn")
	w.Header().Set("Vary", "Origin") // by the CORS middleware, whatever it allows
	path := r.URL.Path
	want := method(path, &s.opt)
	if want == "admin" {
		s.serveAdmin(w, r)
		return
	}
	api, generates := request.APIOf(path)
	if generates {
		defer s.opt.Journal.Begin(r.Header.Get("X-Request-Id"))()
	}
	x := l.newExchange(client{w: w, flusher: w.(flusher), r: r, api: api}, path)
	x.fault = s.faults.Match(path, r.Header.Get(connector.HeaderRank), generates)
	if x.strike(BeforeRead, 0) {
		return
	}
	body, err := request.ReadBody(r)
	s.record.Add(r, body)
	if err != nil {
		x.aborted() // the client left in the middle of its body, or sent no HTTP
		return
	}
	if x.strike(AfterRead, 0) {
		return
	}
	id, cancel, stored := responses.Path(path)
	switch {
	case !s.opt.authorized(r):
		w.Header().Del("Vary") // the key is checked in front of that
		pydantic.WriteJSON(w, http.StatusUnauthorized, []byte(`{"error":"Unauthorized"}`))
	case want == "":
		pydantic.WriteDetail(w, http.StatusNotFound, "Not Found")
	case want != r.Method:
		w.Header().Set("Allow", want)
		pydantic.WriteDetail(w, http.StatusMethodNotAllowed, "Method Not Allowed")
	case stored:
		x.answer(l.responses.Read(id, cancel))
	case want == http.MethodGet:
		l.get(w, path)
	default:
		x.post(path, body)
	}
}

// authorized is vLLM's key check: only some prefixes, any method but OPTIONS.
func (o *Options) authorized(r *http.Request) bool {
	if o.APIKey == "" || r.Method == http.MethodOptions || !guarded(r.URL.Path) {
		return true
	}
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.EqualFold(scheme, "bearer") && subtle.ConstantTimeCompare([]byte(key), []byte(o.APIKey)) == 1
}

func guarded(path string) bool {
	return slices.ContainsFunc([]string{"/v1", "/v2", "/inference", "/cohere"}, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
}

func (x *exchange) post(path string, body []byte) {
	if path == pathTranscriptions || path == pathTranslations {
		x.transcribe(path, body)
		return
	}
	of, generates := request.APIOf(path)
	if of == request.Generate && !x.life.server.opt.ScaleOut { // since 0.32
		x.refuse(&pydantic.Error{Status: http.StatusForbidden, Kind: "PermissionDeniedError",
			Message: "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."})
		return
	}
	body, err := request.ReadJSON(x.r, body)
	if err != nil {
		if generates {
			x.life.count.Requests.Add(1)
		}
		x.refuse(err)
		return
	}
	switch path {
	case "/tokenize":
		x.answer(x.life.tokenize(body))
	case "/detokenize":
		x.answer(x.life.detokenize(body))
	case pathLoadAdapter, pathUnloadAdapter:
		x.changeAdapters(path, body)
	default:
		x.generate(body)
	}
}
