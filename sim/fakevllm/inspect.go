package fakevllm

import (
	"net/http"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/kvparams"
)

// inspect records what vLLM takes but no good proxy sends.
func (s *Server) inspect(j *job, r *http.Request) {
	report := func(what string) { s.violation("%s engine, %s: %s", s.opt.Role, j.ID, what) }
	if s.opt.Role != RoleBoth && r.Header.Get("X-Request-Id") == "" {
		report("no X-Request-Id")
	}
	switch s.opt.Role {
	case RolePrefill:
		if j.Stream {
			report("stream is true")
		}
		if j.HasStreamOptions {
			report("stream_options is present")
		}
		if asked := j.MaxTokens; asked == nil || *asked != 1 {
			report("max_tokens is not 1")
		}
		if asked := j.MaxCompletionTokens; asked != nil && *asked != 1 {
			report("max_completion_tokens is not 1")
		}
		if j.Store || j.Background {
			report("the answer is to be stored")
		}
		if j.StopSequences {
			report("stop_sequences are present")
		}
		if j.N != 1 || len(j.Prompts) != 1 {
			report("more than one answer is asked for")
		}
		if s.opt.Mode.HandsOver() && kvparams.ParseNIXL(j.KV, s.opt.Mode).Form != kvparams.Produce {
			report("kv_transfer_params has not the prefill form")
		}
		if s.opt.Mode == P2P {
			if kvparams.P2PMember(j.KV, "remote_decoder") == nil {
				report("kv_transfer_params has no remote_decoder")
			}
			if r.Header.Get(headerRank) == "" {
				report("no X-data-parallel-rank")
			}
		}
		if s.opt.Mode == MoRIIORead || s.opt.Mode == MoRIIOWrite {
			if k := kvparams.ParseMoRIIO(j.KV, j.ID, s.opt.Mode); !k.Produce || strings.HasPrefix(k.TransferID, "sidecar-") {
				report("kv_transfer_params has not the prefill form")
			}
		}
		if s.opt.Mode == Mooncake {
			if k := kvparams.ParseMooncake(j.KV); !k.Produce || k.TransferID == "" {
				report("kv_transfer_params has not the prefill form")
			}
			if r.Header.Get(headerRank) == "" {
				report("no X-data-parallel-rank")
			}
		}
		if s.opt.Mode == LMCache {
			if spec, tags, err := kvparams.ParseLMCache(j.KV); err != nil || spec == nil || tags == "" || len(spec.Init) != s.opt.Ranks || len(spec.Alloc) != s.opt.Ranks {
				report("kv_transfer_params has not the prefill form")
			}
		}
	case RoleDecode:
		if spec, _, err := kvparams.ParseLMCache(j.KV); s.opt.Mode == LMCache && (err != nil || spec != nil) {
			report("kv_transfer_params has the prefill form")
		}
		if s.opt.Mode.HandsOver() && kvparams.ParseNIXL(j.KV, s.opt.Mode).Form == kvparams.Produce {
			report("kv_transfer_params has the prefill form")
		}
	case RoleBoth:
	}
	if s.opt.Mode == Plain && j.KV != nil {
		report("kv_transfer_params in plain mode")
	}
}
