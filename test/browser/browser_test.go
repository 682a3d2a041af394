package browser_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// patience limits every wait for the browser.
const patience = 60 * time.Second

// missing skips the test because of a missing program, or fails it if REQUIRE_BROWSER is set.
func missing(t *testing.T, format string, args ...any) {
	t.Helper()
	why := fmt.Sprintf(format, args...) + " (see test/browser/main_test.go)"
	if v := os.Getenv("REQUIRE_BROWSER"); v != "" && v != "0" {
		t.Fatal(why)
	}
	t.Skip(why)
}

func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv("PD_TEST_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"} {
		if name == "" {
			continue
		}
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	missing(t, "there is no Chromium")
	return ""
}

// tab is a page in a separate browser process.
type tab struct {
	*testing.T
	ctx context.Context //nolint:containedctx // chromedp keeps the page in it
}

// look is the size and the colour scheme of a page's window.
type look struct {
	wide, high int64
	dark       bool
}

func desktop() look { return look{1440, 900, false} }

// open opens a page. Warnings and errors in its console fail the test at its end, unless they contain
// one of the texts of expect.
func open(t *testing.T, url string, as look, expect ...string) *tab {
	t.Helper()
	flags := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(chromium(t)), chromedp.WindowSize(int(as.wide), int(as.high)), chromedp.UserDataDir(t.TempDir()),
		chromedp.WSURLReadTimeout(patience), chromedp.DisableGPU, chromedp.Flag("disable-component-update", true))
	if os.Getuid() == 0 {
		flags = append(flags, chromedp.NoSandbox) // required to run as root
	}
	alloc, end := chromedp.NewExecAllocator(context.Background(), flags...)
	ctx, cancel := chromedp.NewContext(alloc)
	p := &tab{T: t, ctx: ctx}
	require.NoError(t, chromedp.Do(ctx)) // starts the browser here, because it would otherwise exit with the context of a later call
	console := make(chan struct{})
	messages := chromedp.Console(ctx)
	go func() {
		defer close(console)
		for m, err := range messages {
			if err != nil {
				return
			}
			assert.False(t, bad(m, expect), "console message: %s (%s)", m, m.URL)
		}
	}()
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // it fails if the browser has already exited
		cancel()
		end()
		<-console
	})
	p.do(p.scheme(as.dark), chromedp.EmulateViewport(as.wide, as.high), chromedp.Navigate(url))
	return p
}

func bad(m chromedp.ConsoleMessage, expect []string) bool {
	switch m.Type {
	case chromedp.ConsoleError, chromedp.ConsoleWarning, chromedp.ConsoleException:
		return !slices.ContainsFunc(expect, func(s string) bool { return strings.Contains(m.Text, s) })
	}
	return false
}

// scheme sets the colour scheme of the system that the browser runs on.
func (p *tab) scheme(dark bool) chromedp.Action[chromedp.Void] {
	value := "light"
	if dark {
		value = "dark"
	}
	return func(ctx context.Context, _ *chromedp.Target) (chromedp.Void, error) {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}},
		})
		return chromedp.Void{}, err
	}
}

// do performs actions in the page, within patience.
func (p *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		p.Fatalf("%v; page text:\n%s", err, p.text())
	}
}

// text returns the visible text of the page.
func (p *tab) text() string {
	ctx, cancel := context.WithTimeout(p.ctx, 10*time.Second)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string]("document.body.innerText"))
	if err != nil {
		return err.Error()
	}
	return text
}

// until waits until a JavaScript expression is true.
func (p *tab) until(expression string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	_, err := chromedp.Run(ctx, chromedp.Poll[bool]("Boolean("+expression+")",
		chromedp.WithPollingInterval(100*time.Millisecond), chromedp.WithPollingTimeout(patience)))
	if err != nil {
		p.Fatalf("%s: %v; page text:\n%s", expression, err, p.text())
	}
}

// value returns the value of a JavaScript expression, or that of the promise it evaluates to.
func value[T any](p *tab, expression string) T {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.Fatalf("%s: %v", expression, err)
	}
	return v
}

// row returns an expression for the row of an instance, undefined if there is none.
func row(role, address string) string {
	return fmt.Sprintf(`[...document.querySelectorAll('tr[data-name^="%s/%s"]')][0]`, role, address)
}

// shows waits until the row of an instance shows a state.
func (p *tab) shows(role, address, state string) {
	p.Helper()
	p.until(fmt.Sprintf(`(%s)?.querySelector('.badge')?.textContent === %q`, row(role, address), state))
}
