package browser_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// largestShot is the maximum size of a screenshot in the repository, in bytes.
const largestShot = 200 << 10

// shoot writes a screenshot of the window.
func (p *tab) shoot(dir, name string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	require.NoError(p, err)
	if len(png) > largestShot {
		p.Errorf("%s has %d bytes, more than %d", name, len(png), largestShot)
	}
	require.NoError(p, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}

// traffic sends load that resembles a working day: prompts with common prefixes, responses of different
// lengths, and a varying rate.
func traffic(t *testing.T, model string, clients int, urls ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	t.Cleanup(func() { cancel(); work.Wait() })
	hc := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	t.Cleanup(hc.CloseIdleConnections)
	begun := time.Now()
	for c := range clients {
		work.Go(func() {
			for i := 0; ; i++ {
				swing := 1 + .8*math.Sin(time.Since(begun).Seconds()/23+float64(c)/3)
				timer := time.NewTimer(time.Duration(float64(rand.N(600*time.Millisecond)) * swing))
				select {
				case <-ctx.Done():
					timer.Stop()
					return
				case <-timer.C:
				}
				system := strings.Repeat(fmt.Sprintf("You are helper %d and answer questions about the sea. ", rand.N(6)), 40)
				body := fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":%d,"ignore_eos":true,"stream":true}`,
					model, system+fmt.Sprintf("Question %d of %d: ", i, c)+strings.Repeat("why is it so? ", rand.N(30)), 10+rand.N(90))
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, urls[(c+i)%len(urls)]+"/v1/completions", strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Content-Type", "application/json")
				if resp, err := hc.Do(req); err == nil { // at the end all requests are cancelled
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}
		})
	}
}

// TestScreenshots takes the screenshots of docs/dashboard.md into the directory that
// PD_TEST_SCREENSHOTS names; make screenshots runs it.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("PD_TEST_SCREENSHOTS")
	if dir == "" {
		t.Skip("PD_TEST_SCREENSHOTS is not set (make screenshots)")
	}
	warm := 5 * time.Minute // until the charts are full
	if text := os.Getenv("PD_TEST_SCREENSHOTS_AFTER"); text != "" {
		var err error
		warm, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	fourInstances(t, dir, warm)
}

func fourInstances(t *testing.T, dir string, warm time.Duration) {
	r := newRig(t, 2)
	r.model = "Qwen/Qwen3-32B"
	common := []string{"--vllm-version", "0.32.0", "--num-gpu-blocks-override", "3000", "--enable-prompt-tokens-details", "--prefill-rate", "12000", "--itl-per-request", "1ms"}
	r.node(instance.Prefill, true, common...)
	r.node(instance.Prefill, true, common...)
	r.node(instance.Decode, true, common...)
	ranks := r.node(instance.Decode, true, append(common, "--data-parallel-size", "4")...)
	r.serves(2, 2)
	traffic(t, r.model, 10, r.proxies[0].URL(), r.proxies[1].URL())
	light, dark := open(t, r.url(), desktop()), open(t, r.url(), look{1440, 900, true})
	narrow := open(t, r.url(), look{360, 780, false})
	timer := time.NewTimer(warm)
	defer timer.Stop()
	select {
	case <-t.Context().Done():
	case <-timer.C:
	}
	busy := func(p *tab) { p.until(`[...state.loads.values()].filter((l) => l.n > 0).length > 2`) }
	busy(light)
	light.shoot(dir, "light")
	dark.do(chromedp.EmulateViewport(1280, 860))
	value[any](dark, fmt.Sprintf(`(%s).querySelector('.name').click()`, row("decode", ranks.Address)))
	value[any](narrow, `document.getElementById('fleet').scrollIntoView()`)
	busy(narrow)
	narrow.shoot(dir, "narrow")

	value[any](dark, fmt.Sprintf(`(%s).querySelector('.act button').click()`, row("decode", ranks.Address)))
	dark.do(chromedp.SendKeys(chromedp.CSS("#key-input"), adminKey+"\r"))
	dark.until(`document.getElementById('act-dialog').open`)
	dark.do(chromedp.EmulateViewport(1100, 820))
	dark.shoot(dir, "drain")
}
