package fakevllm

import (
	"bytes"
	"crypto/subtle"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

const (
	pathModels = "/v1/models"

	pathEventSources = "/kv_event_sources"

	pathTranscriptions = "/v1/audio/transcriptions"
	pathTranslations   = "/v1/audio/translations"

	maxBody = 256 << 20
)

// method is the only method a route has; "" for an unknown route.
func method(path string, o *Options) string {
	switch path {
	case pathTranscriptions, pathTranslations:
		if o.Transcription {
			return http.MethodPost
		}
	case "/tokenizer_info":
		if o.TokenizerInfo {
			return http.MethodGet
		}
	case pathEventSources:
		if minor(o.Version) >= 31 {
			return http.MethodGet
		}
	case request.PathCompletions, request.PathChat, request.PathResponses, request.PathMessages, request.PathGenerate, "/tokenize", "/detokenize":
		return http.MethodPost
	case pathModels, "/health", "/ping", "/version", "/metrics", "/load":
		return http.MethodGet
	case pathFaults, pathState:
		if o.Admin {
			return "admin"
		}
	default:
		if id, cancel, ok := storedPath(path); ok && id != "" {
			if cancel {
				return http.MethodPost
			}
			return http.MethodGet
		}
	}
	return ""
}

// ServeHTTP is one request to this incarnation.
func (l *life) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !l.enter() {
		panic(http.ErrAbortHandler)
	}
	defer l.leave()
	s := l.server
	w.Header().Set("Server", "uvicorn")
	w.Header().Set("Vary", "Origin") // by the CORS middleware, whatever it allows
	path := r.URL.Path
	want := method(path, &s.opt)
	if want == "admin" {
		s.serveAdmin(w, r)
		return
	}
	x := &exchange{life: l, w: w, flusher: w.(flusher), r: r, id: path, core: l.cores[0]}
	api, generates := request.APIOf(path)
	x.api, x.fault = api, s.faults.Match(path, r.Header.Get(headerRank), generates)
	if x.strike(BeforeRead, 0) {
		return
	}
	body, err := readBody(r)
	s.record.Add(r, body)
	if err != nil {
		x.aborted() // the client left in the middle of its body, or sent no HTTP
		return
	}
	if x.strike(AfterRead, 0) {
		return
	}
	switch {
	case !s.authorized(r):
		w.Header().Del("Vary") // the key is checked in front of that
		pydantic.WriteJSON(w, http.StatusUnauthorized, []byte(`{"error":"Unauthorized"}`))
	case want == "":
		pydantic.WriteJSON(w, http.StatusNotFound, []byte(`{"detail":"Not Found"}`))
	case want != r.Method:
		w.Header().Set("Allow", want)
		pydantic.WriteJSON(w, http.StatusMethodNotAllowed, []byte(`{"detail":"Method Not Allowed"}`))
	case storedRoute(path):
		x.storedResponse(path)
	case want == http.MethodGet:
		l.get(w, path)
	default:
		x.post(path, body)
	}
}

// readBody allocates once when the length is known.
func readBody(r *http.Request) ([]byte, error) {
	if r.ContentLength > 0 && r.ContentLength <= maxBody {
		body := make([]byte, r.ContentLength)
		if _, err := io.ReadFull(r.Body, body); err != nil {
			return nil, err
		}
		// The last byte came with EOF: from here on net/http watches for the
		// client going away.
		return body, nil
	}
	return io.ReadAll(io.LimitReader(r.Body, maxBody))
}

// authorized is vLLM's key check: only some prefixes, any method but OPTIONS.
func (s *Server) authorized(r *http.Request) bool {
	if s.opt.APIKey == "" || r.Method == http.MethodOptions || !guarded(r.URL.Path) {
		return true
	}
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.EqualFold(scheme, "bearer") && subtle.ConstantTimeCompare([]byte(key), []byte(s.opt.APIKey)) == 1
}

func guarded(path string) bool {
	for _, prefix := range []string{"/v1", "/v2", "/inference", "/cohere"} {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

func (l *life) get(w http.ResponseWriter, path string) {
	switch path {
	case "/health", "/ping":
		w.Header()["Content-Length"] = []string{"0"}
		w.WriteHeader(http.StatusOK)
	case "/load":
		pydantic.WriteJSON(w, http.StatusOK, []byte(`{"server_load":0}`)) // it is not tracked without an option
	case pathEventSources:
		l.eventSources(w)
	case "/tokenizer_info":
		pydantic.WriteJSON(w, http.StatusOK, []byte(`{"tokenizer_class":"FakeTokenizer","max_loras":null,"truncation_side":"right"}`))
	case "/version":
		b := append([]byte(nil), `{"version":`...)
		pydantic.WriteJSON(w, http.StatusOK, append(jsontext.AppendString(b, l.server.opt.Version), '}'))
	case pathModels:
		pydantic.WriteJSON(w, http.StatusOK, l.models())
	case "/metrics":
		b := l.metrics()
		h := w.Header()
		h.Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		h.Set("Content-Length", strconv.Itoa(len(b)))
		_, _ = w.Write(b)
	}
}

// models is vLLM's list: one object per served name, all of one root.
func (l *life) models() []byte {
	o := &l.server.opt
	created := l.started.Unix()
	b := append(make([]byte, 0, 512*len(o.Models)), `{"object":"list","data":[`...)
	for i, name := range o.Models {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"id":`...)
		b = jsontext.AppendString(b, name)
		b = append(b, `,"object":"model","created":`...)
		b = strconv.AppendInt(b, created, 10)
		b = append(b, `,"owned_by":"vllm","root":`...)
		b = jsontext.AppendString(b, o.Root)
		b = append(b, `,"parent":null,"max_model_len":`...)
		b = strconv.AppendInt(b, int64(o.MaxModelLen), 10)
		b = append(b, `,"permission":[{"id":"modelperm-`...)
		b = append(b, strings.ReplaceAll(l.engineID, "-", "")...)
		b = append(b, `","object":"model_permission","created":`...)
		b = strconv.AppendInt(b, created, 10)
		b = append(b, `,"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,`...)
		b = append(b, `"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}]}`...)
	}
	return append(b, "]}"...)
}

// servesModel: no model at all means the first one, as in vLLM.
func (s *Server) servesModel(name string) bool {
	if name == "" {
		return true
	}
	return slices.Contains(s.opt.Models, name)
}

// isJSON is vLLM's validate_json_request: parameters are allowed.
func isJSON(r *http.Request) bool {
	media, _, _ := strings.Cut(strings.ToLower(r.Header.Get("Content-Type")), ";")
	return media == "application/json"
}

// looksLikeJSON is FastAPI's opinion of a Content-Type: it reads the body before vLLM
// looks at the type.
func looksLikeJSON(r *http.Request) bool {
	media, _, _ := strings.Cut(strings.ToLower(r.Header.Get("Content-Type")), ";")
	media = strings.TrimSpace(media)
	return media == "application/json" || strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json")
}

// readJSON gives the text of a body that is a JSON object.
func readJSON(r *http.Request, body []byte) ([]byte, *pydantic.Error) {
	if len(body) > 0 && looksLikeJSON(r) {
		text, ok := pydantic.Decode(body)
		if !ok {
			return nil, pydantic.Unreadable()
		}
		if body = text; !isJSON(r) || pydantic.SkipSpace(body, 0) == len(body) || body[pydantic.SkipSpace(body, 0)] != '{' {
			if e := pydantic.Explain(body); e != nil {
				return nil, e
			}
		}
	}
	if !isJSON(r) {
		return nil, pydantic.WrongMedia()
	}
	raw := body[pydantic.SkipSpace(body, 0):]
	switch {
	case len(raw) == 0 || pydantic.IsNull(bytes.TrimRight(raw, " \t\r\n")):
		return nil, pydantic.Complaints(pydantic.Problem{Kind: "missing", Loc: "body", Msg: "Field required", Input: "None"})
	case raw[0] != '{':
		return nil, pydantic.Invalid("model_attributes_type", "", bytes.TrimRight(raw, " \t\r\n"), "Input should be a valid dictionary or object to extract fields from")
	}
	return body, nil
}

func (x *exchange) post(path string, body []byte) {
	if path == pathTranscriptions || path == pathTranslations {
		x.transcribe(path, body)
		return
	}
	of, generates := request.APIOf(path)
	if of == request.Generate && !x.life.server.opt.ScaleOut {
		x.reject(scaleOutDisabled())
		return
	}
	body, e := readJSON(x.r, body)
	if e != nil {
		if generates {
			x.life.count.requests.Add(1)
		}
		x.reject(e)
		return
	}
	switch path {
	case "/tokenize":
		x.tokenize(body)
	case "/detokenize":
		x.detokenize(body)
	default:
		x.complete(body, x.api != request.Completions && x.api != request.Generate)
	}
}

func (x *exchange) reject(e *pydantic.Error) {
	x.life.count.rejected.Add(1)
	x.refuse(e)
}
