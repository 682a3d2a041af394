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
)

// patience bounds every wait for the browser.
const patience = 60 * time.Second

// missing says why nothing can be tried: a failure where REQUIRE_BROWSER is set, else the
// test is left out.
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

// tab is a page in a browser of its own.
type tab struct {
	*testing.T
	ctx context.Context //nolint:containedctx // chromedp keeps the page in it
}

// look is how a page is looked at.
type look struct {
	wide, high int64
	dark       bool
}

func desktop() look { return look{1440, 900, false} }

// open opens a page. What its console complains of fails the test at its end, but for
// complaints that hold one of the texts of expect.
func open(t *testing.T, url string, as look, expect ...string) *tab {
	t.Helper()
	flags := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(chromium(t)), chromedp.WindowSize(int(as.wide), int(as.high)), chromedp.UserDataDir(t.TempDir()),
		chromedp.WSURLReadTimeout(patience), chromedp.DisableGPU, chromedp.Flag("disable-component-update", true))
	if os.Getuid() == 0 {
		flags = append(flags, chromedp.NoSandbox) // it refuses to run as root otherwise
	}
	alloc, end := chromedp.NewExecAllocator(context.Background(), flags...)
	ctx, cancel := chromedp.NewContext(alloc)
	p := &tab{T: t, ctx: ctx}
	if err := chromedp.Do(ctx); err != nil { // the browser starts here, and would end with the context of a later call
		t.Fatal(err)
	}
	console := make(chan struct{})
	messages := chromedp.Console(ctx)
	go func() {
		defer close(console)
		for m, err := range messages {
			if err != nil {
				return
			}
			if bad(m, expect) {
				t.Errorf("the console says: %s (%s)", m, m.URL)
			}
		}
	}()
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // a browser that is gone is what is wanted
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

// scheme makes the system that the browser runs on a light or a dark one.
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

// do does things in the page, within patience.
func (p *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		p.Fatalf("%v; the page says:\n%s", err, p.text())
	}
}

// text is what the page shows.
func (p *tab) text() string {
	ctx, cancel := context.WithTimeout(p.ctx, 10*time.Second)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string]("document.body.innerText"))
	if err != nil {
		return err.Error()
	}
	return text
}

// until waits until an expression of JavaScript is true.
func (p *tab) until(expression string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	_, err := chromedp.Run(ctx, chromedp.Poll[bool]("Boolean("+expression+")",
		chromedp.WithPollingInterval(100*time.Millisecond), chromedp.WithPollingTimeout(patience)))
	if err != nil {
		p.Fatalf("%s: %v; the page says:\n%s", expression, err, p.text())
	}
}

// value returns that of an expression of JavaScript, or of the promise that it is.
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

// row is an expression for the row of an instance, undefined while there is none.
func row(role, address string) string {
	return fmt.Sprintf(`[...document.querySelectorAll('tr[data-name^="%s/%s"]')][0]`, role, address)
}

// shows waits until the row of an instance has a state.
func (p *tab) shows(role, address, state string) {
	p.Helper()
	p.until(fmt.Sprintf(`(%s)?.querySelector('.badge')?.textContent === %q`, row(role, address), state))
}
