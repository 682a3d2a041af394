package fakevllm

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
)

const (
	pathLoadAdapter   = "/v1/load_lora_adapter"
	pathUnloadAdapter = "/v1/unload_lora_adapter"
)

// adapter is a LoRA adapter that an engine has loaded.
type adapter struct{ name, path string }

// adapters are the LoRA adapters of one life, in the order in which they were loaded
// (vllm/entrypoints/openai/models/serving.py). Those loaded at run time end with the life.
type adapters struct {
	mu   sync.RWMutex // guards list
	list []adapter
}

// snapshot returns the adapters; the caller must not change the slice.
func (a *adapters) snapshot() []adapter {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.list
}

func (a *adapters) has(name string) bool {
	return slices.ContainsFunc(a.snapshot(), func(one adapter) bool { return one.name == name })
}

// invalidInput returns vLLM's error about a request that changes the adapters.
func invalidInput(format string, args ...any) error {
	return &pydantic.Error{Status: http.StatusBadRequest, Kind: "InvalidUserInput", Message: fmt.Sprintf(format, args...)}
}

// load adds an adapter, or replaces it in its place.
func (a *adapters) load(r request.LoadAdapter) error {
	if r.Name == "" || r.Path == "" {
		return invalidInput("Both 'lora_name' and 'lora_path' must be provided.")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	at := slices.IndexFunc(a.list, func(one adapter) bool { return one.name == r.Name })
	if at >= 0 && !r.InPlace {
		return invalidInput("The lora adapter '%s' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True.", r.Name)
	}
	if _, err := os.Stat(r.Path); err != nil {
		return &pydantic.Error{Status: http.StatusNotFound, Kind: "NotFoundError", Message: fmt.Sprintf("Loading lora %s failed: No adapter found for %s", r.Name, r.Path)}
	}
	list := slices.Clone(a.list) // snapshots share the old one
	if at >= 0 {
		list[at].path = r.Path
	} else {
		list = append(list, adapter{r.Name, r.Path})
	}
	a.list = list
	return nil
}

// unload removes an adapter.
func (a *adapters) unload(name string) error {
	if name == "" {
		return invalidInput("'lora_name' needs to be provided to unload a LoRA adapter.")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	at := slices.IndexFunc(a.list, func(one adapter) bool { return one.name == name })
	if at < 0 {
		return &pydantic.Error{Status: http.StatusNotFound, Kind: "NotFoundError", Message: fmt.Sprintf("The lora adapter '%s' cannot be found.", name)}
	}
	a.list = slices.Delete(slices.Clone(a.list), at, at+1)
	return nil
}

// startAdapters returns the adapters that Options.Adapters names, NAME or NAME=PATH.
func startAdapters(o *Options) []adapter {
	list := make([]adapter, 0, len(o.Adapters))
	for _, one := range o.Adapters {
		name, path, ok := strings.Cut(one, "=")
		if !ok {
			path = "/adapters/" + name
		}
		list = append(list, adapter{name, path})
	}
	return list
}

// changeAdapters serves the two routes that VLLM_ALLOW_RUNTIME_LORA_UPDATING adds.
func (x *exchange) changeAdapters(path string, body []byte) {
	r, err := request.ParseAdapter(body, path == pathLoadAdapter)
	l, did := x.life, "removed"
	switch {
	case err != nil:
	case path == pathUnloadAdapter:
		err = l.adapters.unload(r.Name)
	case slices.Contains(l.server.opt.Models, r.Name):
		err = invalidInput("The lora adapter '%s' conflicts with a served base model.", r.Name)
	default:
		err, did = l.adapters.load(r), "added"
	}
	if err != nil {
		x.refuse(err)
		return
	}
	x.w.Header()["Content-Type"] = nil // vLLM sends none
	_, _ = fmt.Fprintf(x.w, "Success: LoRA adapter '%s' %s successfully.", r.Name, did)
}

// serves reports whether a model or an adapter is served: no name means the first model, as in vLLM.
func (l *life) serves(name string) bool {
	return name == "" || slices.Contains(l.server.opt.Models, name) || l.adapters.has(name)
}
