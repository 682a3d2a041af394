package browser_test

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// A page shows the figures and model routes of all proxies, and a lost instance until the loss is
// acknowledged. The URL of the page has the view.
func TestFleet(t *testing.T) {
	r := newRig(t, 2)
	r.node(instance.Prefill, true)
	decode := r.node(instance.Decode, true)
	cli := r.etcd.Client(t)
	lease, err := cli.Grant(t.Context(), 600)
	require.NoError(t, err)
	if _, err := cli.Put(t.Context(), "/pd/decode/127.0.0.1:9", fmt.Sprintf(`{"v":1,"models":[%q],"connector":"nixl","state":"starting"}`, r.model), clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	r.serves(1, 1)
	p := open(t, r.url(), desktop())
	p.shownText("scope", "Figures of 2 of 2 proxies.")
	p.shows("decode", "127.0.0.1:9", "starting")
	p.until(fmt.Sprintf(`(%s).textContent.includes('its engine is starting')`, row("decode", "127.0.0.1:9")))

	// All requests go through the other proxy.
	traffic(t, r.model, 2, r.proxies[1].URL())
	p.until(`latest(state.history.total.served) > 0 && latest(state.history.total.output) > 0 && state.parts.fleet`)
	p.until(fmt.Sprintf(`(%s).querySelector('.load b').textContent !== '0'`, row("decode", decode.Address)))

	// Model routes have the requests of all proxies.
	lease, err = cli.Grant(t.Context(), 3600)
	require.NoError(t, err)
	routes := fmt.Sprintf(`{"v":1,"targets":[{"model":%q,"weight":70},{"model":"new","weight":30}]}`, r.model)
	if _, err := cli.Put(t.Context(), "/pd/models/chat", routes, clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	traffic(t, "chat", 2, r.proxies[1].URL())
	p.until(`state.parts.routes?.[0]?.targets[0].requests > 0 && document.querySelectorAll('#routes tr').length === 2`)
	p.until(`/chat.*70.*1 prefill, 1 decode.*UTC|GMT/.test(document.getElementById('routes').textContent) && document.getElementById('routes').textContent.includes('new30')`)
	p.until(`document.getElementById('keys').textContent.includes('default')`)

	// The instance that is lost next is down according to its agent; it was neither drained nor removed.
	if _, err := cli.Put(t.Context(), "/pd/decode/127.0.0.1:9", fmt.Sprintf(`{"v":1,"models":[%q],"connector":"nixl","state":"down"}`, r.model), clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	p.shows("decode", "127.0.0.1:9", "down")
	if _, err := cli.Revoke(t.Context(), lease.ID); err != nil {
		t.Fatal(err)
	}
	const note = `document.querySelector('.table.c-decode .caption p').textContent`
	p.until(note + `.includes('1 of 2 serving, one lost ')`)
	p.do(chromedp.Click(chromedp.CSS(`.table.c-decode .lost button`)))
	p.until(note + `.startsWith('1 of 1 serving ·')`)

	value[any](p, fmt.Sprintf(`(%s).querySelector('.name').click()`, row("decode", decode.Address)))
	p.do(chromedp.SendKeys(chromedp.CSS("#search"), "nixl"))
	p.until(`location.hash.startsWith('#q=nixl&open=decode')`)
	again := open(t, r.url()+"/"+value[string](p, `location.hash`)+"&only=serving&sort=-load", desktop())
	again.until(`document.querySelector('.more-row') && document.getElementById('search').value === 'nixl' && document.getElementById('only').value === 'serving'`)
	again.until(`document.querySelector('th[data-by=load]').getAttribute('aria-sort') === 'descending' && document.querySelectorAll('tr[data-name]').length === 2`)
}
