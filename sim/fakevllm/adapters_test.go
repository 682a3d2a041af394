package fakevllm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// The routes of VLLM_ALLOW_RUNTIME_LORA_UPDATING answer as vLLM 0.32 does. Loaded adapters
// are listed and served until they are unloaded or the engine restarts.
func TestAdaptersAtRunTime(t *testing.T) {
	t.Parallel()
	s := fakevllm.StartTest(t, fakevllm.Options{Models: []string{"base"}, Adapters: []string{"static"}, RuntimeLoRA: true, Version: "0.32.0"})
	c := client(t)
	change := func(path, body string) (int, string) {
		t.Helper()
		r := post(t, c, s.URL()+path, "", body)
		return r.status, r.body
	}
	const load, unload, complete = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/completions"
	dir := t.TempDir()
	name := func(n string) string { return fmt.Sprintf(`{"lora_name":%q,"lora_path":%q}`, n, dir) }
	prompt := func(model string) string { return fmt.Sprintf(`{"model":%q,"prompt":"a b","max_tokens":2}`, model) }
	for _, tc := range []struct {
		path, body string
		status     int
		says       string
	}{
		{complete, prompt("late"), 404, "The model `late` does not exist. Valid aliases: base."},
		{complete, prompt("static"), 200, `"model":"static"`},
		{load, `{}`, 400, "body.lora_name"},
		{load, `{"lora_name":"late"}`, 400, "body.lora_path"},
		{load, `{"lora_name":"","lora_path":"x"}`, 400, "Both 'lora_name' and 'lora_path' must be provided."},
		{load, name("base"), 400, "conflicts with a served base model"},
		{load, `{"lora_name":"late","lora_path":"/none"}`, 404, "No adapter found for /none"},
		{load, name("late"), 200, "Success: LoRA adapter 'late' added successfully."},
		{load, name("late"), 400, "has already been loaded"},
		{load, strings.Replace(name("late"), "}", `,"load_inplace":true}`, 1), 200, "added successfully"},
		{complete, prompt("late"), 200, `"model":"late"`},
		{unload, `{"lora_name":"late"}`, 200, "Success: LoRA adapter 'late' removed successfully."},
		{unload, `{"lora_name":"late"}`, 404, "The lora adapter 'late' cannot be found."},
		{complete, prompt("late"), 404, "does not exist"},
		{load, name("late"), 200, "added"},
	} {
		if status, text := change(tc.path, tc.body); status != tc.status || !strings.Contains(text, tc.says) {
			t.Errorf("%s %s: %d %s", tc.path, tc.body, status, text)
		}
	}
	s.Kill()
	require.NoError(t, s.Restart(t.Context()))
	if status, _ := change(complete, prompt("late")); status != 404 {
		t.Errorf("after a restart: %d", status)
	}
	if status, _ := change(complete, prompt("static")); status != 200 {
		t.Errorf("the adapter of the command line after a restart: %d", status)
	}
	without := fakevllm.StartTest(t, fakevllm.Options{})
	s = without
	if status, _ := change(load, name("late")); status != 404 {
		t.Errorf("without the option: %d", status)
	}
}
