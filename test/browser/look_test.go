package browser_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/test/harness"
)

// Names come from etcd, where other programs write them: none of them is interpreted as HTML.
func TestHostileNames(t *testing.T) {
	r := newRig(t, 1)
	const evil = `<img src=x onerror="document.title='owned'">`
	put := func(key, value string) {
		if _, err := r.etcd.Client(t).Put(t.Context(), "/pd/"+key, value); err != nil {
			t.Fatal(err)
		}
	}
	rec, err := json.Marshal(instance.Record{
		V: 1, ID: evil, Models: []string{evil, evil + "2"}, Version: evil, Source: evil, State: instance.Ready, Connector: "plain",
		Labels: map[string]string{evil: evil}, Agent: evil,
	})
	require.NoError(t, err)
	put("decode/127.0.0.1:9", string(rec))
	put("decode/127.0.0.1:10", `{"v":1,"connector":"`+strings.ReplaceAll(evil, `"`, `\"`)+`"}`)
	put("override/decode/127.0.0.1:9", `{"v":1,"state":"drain","reason":"`+strings.ReplaceAll(evil, `"`, `\"`)+`"}`)
	put("proxies/"+evil, `{"v":1,"address":"`+strings.ReplaceAll(evil, `"`, `\"`)+`","version":"<script>1</script>"}`)
	p := open(t, r.url(), desktop(), "requires 'TrustedHTML' assignment") // by the last check
	p.shows("decode", "127.0.0.1:9", "draining")
	p.shows("decode", "127.0.0.1:10", "rejected")
	p.until(fmt.Sprintf(`document.getElementById('proxies').textContent.includes(%q)`, evil))
	value[any](p, fmt.Sprintf(`(%s).querySelector('.name').click()`, row("decode", "127.0.0.1:9")))
	p.until(fmt.Sprintf(`document.querySelector('.more-row')?.textContent.includes(%q)`, evil))
	n := value[int](p, `document.querySelectorAll('img, iframe, object, script:not(:last-of-type)').length`)
	assert.Equal(t, 0, n, "elements were created from names")
	title := value[string](p, `document.title`)
	assert.NotContains(t, title, "owned", "a name was executed")
	// The browser refuses HTML in a text, even if a script of the page tries to set it.
	if !value[bool](p, `(() => { try { document.createElement('p').innerHTML = '<b>'; return false } catch { return true } })()`) {
		t.Error("text can be interpreted as HTML")
	}
}

// violations runs axe-core on the page and returns its serious and critical violations.
func (p *tab) violations(axe string) []string {
	p.Helper()
	value[any](p, axe+"; null")
	return value[[]string](p, `axe.run(document).then((r) => r.passes.length < 15 ? ['only ' + r.passes.length + ' rules applied'] : r.violations
		.filter((v) => v.impact === 'serious' || v.impact === 'critical')
		.map((v) => v.id + ': ' + v.help + ': ' + v.nodes.slice(0, 3).map((n) => n.target + ' ' + n.failureSummary).join(' | ')))`)
}

func axeCore(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("axe/node_modules/axe-core/axe.min.js")
	if err != nil {
		missing(t, "axe-core is not installed (cd test/browser/axe && npm ci)")
	}
	return string(b)
}

// The page satisfies axe-core's rules in each of its states and colour schemes.
func TestAccessibility(t *testing.T) {
	axe := axeCore(t)
	r := newRig(t, 1)
	for _, role := range instance.Roles() {
		r.node(role, true)
	}
	odd := r.node(instance.Decode, true)
	r.serves(1, 2)
	route := fmt.Sprintf(`{"v":1,"reason":"a new version","targets":[{"model":%q,"weight":70},{"model":"new"}]}`, r.model)
	if _, err := r.etcd.Client(t).Put(t.Context(), "/pd/models/a-name-that-is-longer-than-a-narrow-window-is-wide", route); err != nil {
		t.Fatal(err)
	}
	traffic(t, r.model, 1, r.url())
	pages := map[string]*tab{
		"light": open(t, r.url(), desktop()), "dark": open(t, r.url(), look{1440, 900, true}), "narrow": open(t, r.url(), look{360, 780, false}),
	}
	check := func(state string) {
		t.Helper()
		for name, p := range pages {
			for _, v := range p.violations(axe) {
				t.Errorf("%s, %s: %s", name, state, v)
			}
			over := value[int](p, `document.documentElement.scrollWidth - document.documentElement.clientWidth`)
			assert.LessOrEqual(t, over, 0, "%s, %s: the page is %d px wider than its window", name, state, over)
		}
	}
	each := func(f func(p *tab)) {
		for _, p := range pages {
			f(p)
		}
	}
	each(func(p *tab) {
		p.shows("decode", odd.Address, "ready")
		p.until(`document.querySelectorAll('#routes tr').length === 2 && document.getElementById('keys').textContent !== ''`)
	})
	check("at first")
	each(func(p *tab) {
		value[any](p, fmt.Sprintf(`(%s).querySelector('.name').click()`, row("decode", odd.Address)))
		p.do(chromedp.Click(chromedp.CSS("#add")))
	})
	check("the key is asked for")
	each(func(p *tab) {
		p.do(chromedp.SendKeys(chromedp.CSS("#key-input"), adminKey+"\r"))
		p.until(`document.getElementById('add-dialog').open`)
	})
	check("adding")
	each(func(p *tab) {
		p.do(chromedp.Click(chromedp.CSS("#add-dialog [data-close]")))
		p.manage("decode", odd.Address, "drain")
	})
	check("managing")
	pages["light"].do(chromedp.Click(chromedp.CSS("#act-ok")))
	each(func(p *tab) { p.shows("decode", odd.Address, "draining") })
	each(func(p *tab) { value[any](p, `document.getElementById('act-dialog').close()`) })
	r.etcd.Kill()
	each(func(p *tab) { p.shownText("alarm", "etcd does not respond") })
	check("etcd is down")
}

// Every control can be reached and used with the keyboard only.
func TestKeyboard(t *testing.T) {
	r := newRig(t, 1)
	r.node(instance.Decode, true)
	r.serves(0, 1)
	p := open(t, r.url(), desktop())
	p.until(`document.querySelector('tr[data-name] .name')`)
	var order []string
	for range 16 {
		p.do(chromedp.KeyEvent("\t"))
		at := value[string](p, `(() => { const e = document.activeElement, s = getComputedStyle(e);
			return (e.id || e.className || e.textContent) + (s.outlineStyle === 'none' ? ' without a mark' : '') })()`)
		order = append(order, at)
	}
	all := strings.Join(order, ", ")
	for _, want := range []string{"skip", "theme", "key", "search", "only", "add", "name", "quiet"} {
		assert.Contains(t, ", "+all+",", ", "+want+",", "%s is not reachable: %s", want, all)
	}
	assert.NotContains(t, all, "without a mark", "the focus is not visible: %s", all)
	value[any](p, `document.querySelector('tr[data-name] .act button').focus()`)
	p.do(chromedp.KeyEvent("\r"))
	p.until(`document.getElementById('key-dialog').open`)
	p.do(chromedp.KeyEvent("\x1b"))
	p.until(`!document.getElementById('key-dialog').open && document.activeElement.textContent === 'Manage'`)
}

const many = 500

// A fleet of 500 instances under load: all are in the page, only rows near the window are drawn, and
// a filter finds one instance.
func TestManyInstances(t *testing.T) {
	r := newRig(t, 1, "--scrape-interval=20s")
	p := manyInstances(t, r)
	n := value[int](p, `[...fleet.lines.values()].filter((l) => l.near).length`)
	assert.True(t, n != 0 && n <= 60, "%d rows are drawn", n)
	p.do(chromedp.SendKeys(chromedp.CSS("#search"), "127.0.2.7:"))
	p.until(`document.querySelectorAll('tr[data-name]').length === 1`)
	p.shownText("shown", "1 instance shown of 500")
	n = value[int](p, `state.feed.length`)
	assert.LessOrEqual(t, n, 100, "the feed has %d entries", n)
	// The history of removed instances is discarded eventually.
	if value[bool](p, `(() => { state.history.of.set('decode/removed:1', [[5], [5]]);
		for (let i = 0; i < maxPoints; i++) addPoint({ total: {}, of: {} });
		return state.history.of.has('decode/removed:1') })()`) {
		t.Error("the history of a removed instance is kept")
	}
}

// manyInstances registers many addresses that lead to two engines, sends requests, and waits until the
// page lists all of them and has drawn some.
func manyInstances(t *testing.T, r *rig) *tab {
	t.Helper()
	shared := fakevllm.NewShared()
	cli := r.etcd.Client(t)
	for i, role := range []fakevllm.Role{fakevllm.RolePrefill, fakevllm.RoleDecode} {
		// An engine that listens on every loopback address serves as any number of instances.
		e := fakevllm.StartTest(t, fakevllm.Options{
			Addr: "0.0.0.0:0", Role: role, Models: []string{harness.Model}, Shared: shared, TTFT: 20 * time.Millisecond, ITL: 5 * time.Millisecond,
		})
		port := e.Address()[strings.LastIndexByte(e.Address(), ':')+1:]
		for n := range many / 2 {
			address := "127.0." + strconv.Itoa(i+1) + "." + strconv.Itoa(n+1) + ":" + port
			key := "/pd/" + string(role) + "/" + address
			if _, err := cli.Put(t.Context(), key, `{"v":1,"models":["`+harness.Model+`"],"connector":"plain","version":"0.32.0","state":"ready"}`); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.serves(many/2, many/2)
	harness.StartLoad(t, 4, 50*time.Millisecond, r.url())
	p := open(t, r.url(), desktop())
	p.until(fmt.Sprintf(`document.querySelectorAll('tr[data-name]').length === %d`, many))
	p.until(`[...document.querySelectorAll('tr[data-name] .spark:not(.none)')].length > 2`)
	return p
}

// A viewer above the limit sees a message, and connects when another viewer leaves.
func TestTooManyViewers(t *testing.T) {
	r := newRig(t, 1)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url()+"/dashboard/events", nil)
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		t.Cleanup(func() { resp.Body.Close() })
		if resp.StatusCode != http.StatusOK {
			break
		}
		go func() { _, _ = io.Copy(io.Discard, resp.Body) }() // until it is closed
	}
	p := open(t, r.url(), desktop(), "status of 503")
	p.shownText("said", "too many open dashboards")
	leave()
	p.shownText("link-text", "live")
}

// The page works in a browser that denies storage, such as one without cookies.
func TestWithoutStorage(t *testing.T) {
	r := newRig(t, 1)
	p := open(t, "about:blank", desktop())
	p.do(func(ctx context.Context, _ *chromedp.Target) (chromedp.Void, error) {
		_, err := chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
			Source: `for (const name of ['localStorage', 'sessionStorage'])
				Object.defineProperty(window, name, { get() { throw new DOMException('denied', 'SecurityError') } })`,
		})
		return chromedp.Void{}, err
	}, chromedp.Navigate(r.url()))
	p.shownText("link-text", "live")
	p.do(chromedp.Click(chromedp.CSS("#theme")))
	p.until(`document.getElementById('theme').getAttribute('aria-label') === 'Colours: light'`)
}

// A viewer of a proxy that stops sees a message, and reconnects to its successor automatically.
func TestProxyRestarts(t *testing.T) {
	r := newRig(t, 1)
	r.node(instance.Decode, true)
	r.serves(0, 1)
	p := open(t, r.url(), desktop(), "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")
	p.shownText("link-text", "live")
	first := value[string](p, `document.getElementById('foot').textContent`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	spec := r.proxies[0].Spec
	require.NoError(t, r.proxies[0].Stop(ctx))
	p.until(`document.getElementById('link').dataset.state === 'lost'`)
	if _, err := r.fleet.StartProxy(ctx, spec); err != nil {
		t.Fatal(err)
	}
	p.shownText("link-text", "live")
	p.until(fmt.Sprintf(`document.getElementById('foot').textContent !== %q`, first))
}
