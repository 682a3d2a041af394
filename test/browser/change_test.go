package browser_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// manage opens the dialog of an instance and selects an action.
func (p *tab) manage(role, address, act string) {
	p.Helper()
	p.closed()
	p.until(fmt.Sprintf(`(%s)?.querySelector('.act button')`, row(role, address)))
	value[any](p, fmt.Sprintf(`(%s).querySelector('.act button').click()`, row(role, address)))
	p.until(`document.getElementById('act-dialog').open`)
	p.do(chromedp.Click(chromedp.CSS(`input[name=act][value=` + act + `]`)))
}

// closed waits until no dialog is open. The response to an action closes its dialog, and the event with the
// change can arrive before that.
func (p *tab) closed() {
	p.Helper()
	p.until(`!managed && !document.querySelector('dialog[open]')`)
}

// shownText waits until an element contains a text.
func (p *tab) shownText(id, text string) {
	p.Helper()
	p.until(fmt.Sprintf(`document.getElementById(%q).textContent.includes(%q)`, id, text))
}

// An instance is added, drained and removed on its page, with the key that is typed there.
func TestAddDrainRemove(t *testing.T) {
	r := newRig(t, 1)
	r.node(instance.Prefill, true)
	r.node(instance.Decode, true)
	r.node(instance.Decode, true)
	third := r.node(instance.Decode, false)
	r.serves(1, 2)
	p := open(t, r.url(), desktop(), "status of 403") // a wrong key is typed once
	p.shownText("link-text", "live")

	// The page requests the key, and reports and forgets a wrong one.
	click := func(css string) { p.do(chromedp.Click(chromedp.CSS(css))) }
	enter := func(css, text string) { p.do(chromedp.SendKeys(chromedp.CSS(css), text)) }
	click("#add")
	enter("#key-input", "wrong\r")
	p.until(`document.getElementById('add-dialog').open`)
	enter("#add-address", third.Address+"\r")
	p.shownText("add-error", "Invalid API Key")
	click("#add-dialog [data-close]")
	click("#add")
	enter("#key-input", adminKey+"\r")
	p.until(`document.getElementById('add-dialog').open`)
	click(`input[name=role][value=decode]`)
	click("#add-ok")
	p.shows("decode", third.Address, "ready")
	p.shownText("said", "Added "+third.Address)
	p.until(fmt.Sprintf(`[...document.querySelectorAll('#feed li')].some((li) => li.textContent.includes(%q) && li.textContent.includes('joined'))`, third.Address))
	r.serves(1, 3)

	// Every action shows its effect on the role before it is confirmed.
	p.manage("decode", third.Address, "drain")
	p.shownText("act-effect", "2 of 3 decode instances remain")
	enter("#act-reason", "a new disk")
	click("#act-ok")
	p.shows("decode", third.Address, "draining")
	p.until(fmt.Sprintf(`(%s).textContent.includes('a new disk')`, row("decode", third.Address)))
	r.serves(1, 2)

	p.manage("decode", third.Address, "undrain")
	p.shownText("act-effect", "receives requests again")
	click("#act-ok")
	p.shows("decode", third.Address, "ready")

	p.manage("decode", third.Address, "weight")
	value[any](p, `document.getElementById('act-weight').value = ''`)
	enter("#act-weight", "50")
	click("#act-ok")
	p.until(fmt.Sprintf(`(%s).textContent.includes('weight 50')`, row("decode", third.Address)))

	p.manage("decode", third.Address, "remove")
	p.shownText("act-effect", "2 of 3 decode instances remain")
	click("#act-ok")
	p.until(fmt.Sprintf(`!(%s) || (%[1]s).querySelector('.badge').textContent === 'removed'`, row("decode", third.Address)))
	r.serves(1, 2)

	// Disabling the last instance of a role needs a second confirmation.
	last := value[string](p, `[...document.querySelectorAll('tr[data-name^="prefill/"] .name')][0].textContent`)
	p.manage("prefill", last, "cordon")
	p.shownText("act-effect", "No prefill instance remains: decode instances compute every prompt")
	assert.True(t, value[bool](p, `document.getElementById('act-ok').disabled`),
		"the last prefill instance can be cordoned without a second confirmation")
	click("#act-sure")
	click("#act-ok")
	p.shows("prefill", last, "cordoned")
	r.serves(0, 2)
	p.manage("prefill", last, "uncordon")
	click("#act-ok")
	p.shows("prefill", last, "ready")

	// The key is only in the memory of the page.
	left := value[string](p, `location.href + document.cookie + JSON.stringify(sessionStorage) + JSON.stringify(localStorage) + document.documentElement.outerHTML`)
	assert.NotContains(t, left, adminKey, "the key is stored in the page or its storage")
	p.closed()
	click("#key") // forgets the key
	p.shownText("key-text", "Enter key")
}

// An engine in both roles is kept in one of them for some time. Leaving a role without an instance needs a
// second confirmation.
func TestRole(t *testing.T) {
	r := newRig(t, 1)
	n := r.node(instance.Both, true)
	r.node(instance.Decode, true)
	r.serves(1, 2)
	p := open(t, r.url(), desktop())
	click := func(css string) { p.do(chromedp.Click(chromedp.CSS(css))) }
	value[any](p, `setKey('`+adminKey+`', false); null`)
	choose := func(role string) {
		t.Helper()
		p.manage("decode", n.Address, "role")
		value[any](p, fmt.Sprintf(`byId('act-role').value = %q; byId('act-role').dispatchEvent(new Event('input', { bubbles: true })); null`, role))
	}
	choose("prefill")
	p.shownText("act-effect", "1 of 2 decode instances remain")
	p.do(chromedp.SendKeys(chromedp.CSS("#act-for"), "1h"), chromedp.SendKeys(chromedp.CSS("#act-reason"), "long prompts"))
	click("#act-ok")
	p.shows("decode", n.Address, "prefill-only")
	p.until(fmt.Sprintf(`(%s).textContent.includes('long prompts')`, row("decode", n.Address)))
	r.serves(1, 1)

	choose("both")
	p.shownText("act-effect", "serves both roles again")
	click("#act-ok")
	p.shows("decode", n.Address, "ready")

	choose("decode")
	p.shownText("act-effect", "No prefill instance remains")
	assert.True(t, value[bool](p, `document.getElementById('act-ok').disabled`),
		"the last prefill instance can leave its role without a second confirmation")
	click("#act-sure")
	click("#act-ok")
	p.shows("prefill", n.Address, "decode-only")
	p.until(fmt.Sprintf(`(%s).textContent.includes('role decode by')`, row("prefill", n.Address)))
}

// The row of a second key of an instance shows that its removal removes the instance.
func TestRemoveSecondKey(t *testing.T) {
	r := newRig(t, 1)
	n := r.node(instance.Decode, true)
	r.serves(0, 1)
	second := strings.Replace(n.Address, "127.0.0.1", "localhost", 1)
	if _, err := r.etcd.Client(t).Put(t.Context(), "/pd/decode/"+second, `{}`); err != nil {
		t.Fatal(err)
	}
	p := open(t, r.url(), desktop())
	value[any](p, `setKey('`+adminKey+`', false); null`)
	p.manage("decode", second, "remove")
	p.shownText("act-effect", "Removes "+n.Address+", too. No decode instance remains")
	assert.True(t, value[bool](p, `document.getElementById('act-ok').disabled`),
		"the last decode instance can be removed without a second confirmation")
}

// A slow response blocks a second request of the dialog and belongs to the dialog that sent the request.
func TestLateAnswer(t *testing.T) {
	r := newRig(t, 1)
	first, second := r.node(instance.Decode, true), r.node(instance.Decode, true)
	r.serves(0, 2)
	p := open(t, r.url(), desktop())
	value[any](p, `setKey('`+adminKey+`', false);
		window.fetch = () => new Promise((done) => { window.answer = () => done(new Response('{"message":"late"}')) }); null`)
	p.manage("decode", first.Address, "drain")
	p.do(chromedp.Click(chromedp.CSS("#act-ok")))
	p.until(`window.answer`)
	last := value[int](p, `state.lastEvent`)
	p.until(fmt.Sprintf(`state.lastEvent > %d`, last)) // an event arrived and updated the dialog
	assert.True(t, value[bool](p, `document.getElementById('act-ok').disabled`),
		"an action in progress can be sent again")
	p.do(chromedp.Click(chromedp.CSS("#act-dialog [data-close]")))
	p.until(`!managed`)
	p.manage("decode", second.Address, "cordon")
	value[any](p, `window.answer(); null`)
	p.shownText("said", "late")
	if !value[bool](p, `document.getElementById('act-dialog').open && !document.getElementById('act-ok').disabled`) {
		t.Error("the response was applied to another dialog")
	}
	p.shownText("act-h", second.Address)
}
