package real_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvindex"
	"github.com/pdmesh/pdmesh/internal/kvcache/prefix"
)

// blockSize is the block size of the lab's engines, in tokens.
const blockSize = 32

// message is one message of a chat.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// phrases returns texts of several kinds: the tokenizer knows some and splits others into bytes.
func phrases() []string {
	return []string{
		"The licensor grants rights to reproduce the work. ", "copyright", " Derivative Works", "\n\n    indented\tby a tab\n", "0123456789", " 2026-11-25T13:55:28Z ",
		"naïve café, Straße; ", "許諾者は著作権を許諾する。", "Лицензия предоставляется. ", "🙂🙃👩‍💻", `{"name": "f", "args": [1, 2.5, null]}`, "func main() { fmt.Println(\"x\") }\n",
		"aaaaaaaaaaaaaaaa", "<|user|>", "\\u00e9 \\n \" quoted \" ", " ", "xq9z",
	}
}

// dialogues returns chats with common prefixes: some continue where another ends, some diverge in the
// middle of a word.
func dialogues(rng *rand.Rand, n int) (out [][]message) {
	words := phrases()
	text := func() string {
		var b strings.Builder
		for range 1 + rng.IntN(60) {
			b.WriteString(words[rng.IntN(len(words))])
		}
		return b.String()
	}
	roles := []string{"user", "assistant"}
	for range n {
		var chat []message
		if len(out) > 0 && rng.IntN(5) > 0 {
			chat = slices.Clone(out[rng.IntN(len(out))])
			chat = chat[:1+rng.IntN(len(chat))]
			if last := &chat[len(chat)-1]; rng.IntN(2) == 0 {
				runes := []rune(last.Content)
				last.Content = string(runes[:rng.IntN(len(runes)+1)]) + words[rng.IntN(len(words))]
			}
		} else {
			chat = []message{{"system", text()}}
		}
		for range 1 + rng.IntN(3) {
			chat = append(chat, message{roles[len(chat)%2], text()})
		}
		out = append(out, chat)
	}
	return out
}

// TestPredictedBlocks checks the blocks that kv_aware predicts for a chat from its text. By the tokenizer and
// the chat template of the lab's model, each of them is one of the chat's blocks.
func TestPredictedBlocks(t *testing.T) {
	const chats = 400
	list := dialogues(rand.New(rand.NewPCG(27, 5)), chats)
	bodies := make([][]byte, chats)
	for i, c := range list {
		var err error
		bodies[i], err = json.Marshal(c)
		require.NoError(t, err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(lab.dir, "venv", "bin", "python"), absolute("lab/tokens.py"), filepath.Join(lab.dir, "model"))
	cmd.Env = append(cmd.Environ(), lab.env...)
	cmd.Stdin = bytes.NewReader(bytes.Join(bodies, []byte("\n")))
	out, err := cmd.Output()
	require.NoError(t, err)
	tokens := make([][]uint32, chats)
	decoder := json.NewDecoder(bytes.NewReader(out))
	for i := range tokens {
		require.NoError(t, decoder.Decode(&tokens[i]))
	}
	for _, size := range []int{16, blockSize} {
		names := prefix.NewNames(indexmem.New(0))
		predicted, all, some, wrong := 0, 0, 0, 0
		for i, body := range bodies {
			var chain prefix.Chain
			chain.Start(model)
			chain.Add(body)
			is := kvindex.Chain(nil, tokens[i], size, "", "")
			got, _, _ := names.Find(&chain, true)
			if len(got) > len(is) || !slices.Equal(got, is[:len(got)]) {
				wrong++
				t.Errorf("chat %d: wrong prediction of %d blocks of %d tokens: %s", i, len(got), size, body)
			}
			predicted, all = predicted+len(got), all+len(is)
			if len(got) > 0 {
				some++
			}
			names.Learn(&chain, is, size, len(tokens[i]))
		}
		logf("blocks of %d tokens: %d of %d are predicted, in %d of %d chats; wrong in %d", size, predicted, all, some, chats, wrong)
		if some < chats/4 {
			t.Errorf("blocks of %d chats are predicted, of %d", some, chats)
		}
	}
}
