package real_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/real/answers"
)

// send sends a request of the table.
func (r *rig) send(url string, q request) (answers.Answer, error) {
	req, err := http.NewRequestWithContext(r.t.Context(), q.method, url+q.path, strings.NewReader(q.body))
	if err != nil {
		return nil, err
	}
	if q.contentType != "" {
		req.Header.Set("Content-Type", q.contentType)
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return nil, err
	}
	return answers.Read(resp)
}

// reference records the answers of a single vLLM to the table, then stops it.
func (r *rig) reference(list []request) []answers.Answer {
	r.t.Helper()
	e, err := r.launch("alone", "")
	require.NoError(r.t, err)
	out := make([]answers.Answer, len(list))
	for i, q := range list {
		if out[i], err = r.send(e.url(), q); err != nil {
			r.t.Fatalf("%s: %v", q.name, err)
		}
	}
	require.NoError(r.t, e.Stop(r.t.Context()))
	return out
}

// TestPrefillDecode compares a single vLLM with the proxy and one prefill and two decode engines, and kills
// the decode engines.
func TestPrefillDecode(t *testing.T) {
	r := newRig(t)
	list := table()
	if short() {
		list = slices.DeleteFunc(list, func(q request) bool { return !q.short })
	}
	want := r.reference(list)
	const probe = "The reference knows this one"
	engines := r.start(2)
	prefill, decode := engines[0], engines[1:]

	t.Run("answers", func(t *testing.T) { r.answers(t, list, want) })
	t.Run("transfer", func(t *testing.T) { r.checkTransfer(t, decode) })
	t.Run("stored responses", func(t *testing.T) { r.storedResponses(t, decode) })
	before := r.text(probe, 24)
	t.Run("engine killed", func(t *testing.T) {
		r.kill(t, decode[0], -decode[0].PID(), before, probe) // the whole process group
	})
	if short() {
		return
	}
	t.Run("engine back", func(t *testing.T) {
		again, err := r.launch("decode-1-again", decode[0].role)
		require.NoError(t, err)
		r.startAgent(again)
		r.awaitDecodes(2)
		decode[0] = again
	})
	t.Run("worker killed", func(t *testing.T) {
		pid, err := worker(decode[1].Process)
		require.NoError(t, err)
		r.kill(t, decode[1], pid, before, probe)
	})
	t.Run("prefill's worker killed", func(t *testing.T) {
		pid, err := worker(prefill.Process)
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		testkit.Eventually(t, patience, func() error {
			status, body, err := r.ask(probe, 24)
			if err != nil || status != http.StatusOK {
				return fmt.Errorf("status %d, %w: %s", status, errors.Join(err, errors.New("decode does not serve decode-only requests yet")), body)
			}
			return nil
		})
		if got := r.text(probe, 24); got != before {
			t.Errorf("the decode-only answer is %q, want %q", got, before)
		}
	})
}

// answers sends the whole table to the proxy and compares the answers.
func (r *rig) answers(t *testing.T, list []request, want []answers.Answer) {
	allowed := r.compare(t, list, want)
	if short() {
		return // many rules apply to requests that are not sent
	}
	for _, rule := range allowed.Unused() {
		t.Errorf("no difference matches this rule of testdata/allowed.yaml: %s", rule)
	}
}

// compare sends requests of the table to the proxy and compares the answers.
func (r *rig) compare(t *testing.T, list []request, want []answers.Answer) *answers.Allowed {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "allowed.yaml"))
	require.NoError(t, err)
	defer f.Close()
	allowed, err := answers.ReadAllowed(f)
	require.NoError(t, err)
	equal, explained := 0, 0
	for i, q := range list {
		got, err := r.send(r.proxy.URL(), q)
		if err != nil {
			t.Errorf("%s: %v", q.name, err)
			continue
		}
		switch forbidden, special := allowed.Judge(q.name, answers.Compare(want[i], got)); {
		case len(forbidden) > 0:
			for _, d := range forbidden {
				t.Errorf("%s: %v", q.name, d)
			}
		case special:
			explained++
		default:
			equal++
		}
	}
	logf("%d requests: %d equal, %d with allowed differences, %d others", len(list), equal, explained, len(list)-equal-explained)
	return allowed
}

// checkTransfer checks decode's own counters: prompts came from prefill, on every route that generates except
// the decode-only ones.
func (r *rig) checkTransfer(t *testing.T, decode []*engine, alone ...string) {
	const name = "vllm:prompt_tokens_by_source_total"
	count := func(source string) (sum float64) {
		for _, e := range decode {
			sum += r.metric(e, name, `source="`+source+`"`)
		}
		return sum
	}
	computed, received := count("local_compute"), count("external_kv_transfer")
	tokens := r.promptTokens(long("Counted:") + long("twice"))
	computed, received = count("local_compute")-computed, count("external_kv_transfer")-received
	logf("of a prompt of %d tokens decode computed %v and received %v", tokens, computed, received)
	if computed != 0 || received != float64(tokens) {
		t.Errorf("of %d prompt tokens decode computed %v and received %v", tokens, computed, received)
	}
	for path, body := range map[string]string{
		"/v1/chat/completions":   `{"model":"tiny","max_tokens":4,"messages":[{"role":"user","content":"` + long("Chatted:") + `"}]}`,
		"/v1/responses":          `{"model":"tiny","max_output_tokens":4,"input":"` + long("Responded:") + `"}`,
		"/v1/messages":           `{"model":"tiny","max_tokens":4,"messages":[{"role":"user","content":"` + long("Messaged:") + `"}]}`,
		"/inference/v1/generate": `{"model":"tiny","token_ids":[7` + strings.Repeat(",99,98", 100) + `],"sampling_params":{"max_tokens":4}}`,
	} {
		if slices.Contains(alone, path) {
			continue
		}
		computed, received = count("local_compute"), count("external_kv_transfer")
		if status, answer, err := r.call(http.MethodPost, path, body); err != nil || status != http.StatusOK {
			t.Errorf("%s: %d, %v: %s", path, status, err, answer)
		}
		computed, received = count("local_compute")-computed, count("external_kv_transfer")-received
		logf("%s: decode computed %v and received %v", path, computed, received)
		if computed != 0 || received < 200 {
			t.Errorf("%s: decode computed %v and received %v", path, computed, received)
		}
	}
}

// kill kills a process of a decode engine with SIGKILL while requests run, and waits until the proxy no
// longer uses the engine. No request fails.
func (r *rig) kill(t *testing.T, e *engine, pid int, want, probe string) {
	t.Helper()
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	began, slowest := time.Now(), time.Duration(0)
	for range 10 { // no pause, so that some requests reach the dead engine
		sent := time.Now()
		if got := r.text(probe, 24); got != want {
			t.Errorf("answer %q, want %q", got, want)
		}
		slowest = max(slowest, time.Since(sent))
	}
	r.awaitDecodes(1)
	logf("%s: 10 correct answers, the slowest after %v; engine no longer used after %v", t.Name(), slowest.Round(time.Millisecond), since(began))
	if got := r.text(probe, 24); got != want {
		t.Errorf("answer %q, want %q", got, want)
	}
	select {
	case <-e.Done():
	case <-t.Context().Done():
		t.Error("the engine is still running")
	}
}
