package browser_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/test/harness"
)

// largestShot is how many bytes a picture may have in the repository.
const largestShot = 200 << 10

// shoot writes a picture of what the window shows.
func (p *tab) shoot(dir, name string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		p.Fatal(err)
	}
	if len(png) > largestShot {
		p.Errorf("%s has %d bytes, more than %d", name, len(png), largestShot)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		p.Fatal(err)
	}
}

// TestScreenshots takes the pictures of docs/dashboard.md, into the folder that
// PD_SCREENSHOTS names, for which make screenshots is there.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("PD_SCREENSHOTS")
	if dir == "" {
		t.Skip("PD_SCREENSHOTS names no folder (make screenshots)")
	}
	warm := 150 * time.Second // until the lines have something to show
	if text := os.Getenv("PD_SCREENSHOTS_AFTER"); text != "" {
		var err error
		if warm, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	r := newRig(t, 2)
	for range 2 {
		r.node(instance.Prefill, true)
		r.node(instance.Decode, true)
	}
	r.serves(2, 2)
	harness.StartLoad(t, 6, 80*time.Millisecond, r.proxies[0].URL(), r.proxies[1].URL())
	light := open(t, r.url(), desktop())
	dark := open(t, r.url(), look{1440, 900, true})
	narrow := open(t, r.url(), look{360, 780, false})
	select {
	case <-t.Context().Done():
	case <-time.After(warm):
	}
	light.shoot(dir, "light")
	dark.shoot(dir, "dark")
	narrow.shoot(dir, "narrow")
	r.etcd.Kill()
	light.until(`document.getElementById('alarm').textContent.includes('etcd does not answer')`)
	light.shoot(dir, "etcd-down")
}
