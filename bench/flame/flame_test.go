package flame_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/bench/flame"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

//go:noinline
func spin(until time.Time) (n int) {
	for time.Now().Before(until) {
		for i := range 1000 {
			n += i
		}
	}
	return n
}

// TestRealProfile draws what the runtime writes.
func TestRealProfile(t *testing.T) {
	var buf bytes.Buffer
	if err := pprof.StartCPUProfile(&buf); err != nil {
		t.Fatal(err)
	}
	spin(time.Now().Add(300 * time.Millisecond))
	pprof.StopCPUProfile()
	folded, err := flame.Parse(buf.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if text := folded.Text(); !strings.Contains(text, "testing.tRunner;github.com/pdmesh/pdmesh/bench/flame_test.TestRealProfile;github.com/pdmesh/pdmesh/bench/flame_test.spin") {
		t.Errorf("the stack is not in\n%s", text)
	}
	svg := folded.SVG("a <title>")
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("not XML: %v", err)
		}
	}
	if !strings.Contains(svg, "flame_test.spin") {
		t.Error("the function is not in the picture")
	}
}

func TestNoProfile(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"", "hello, this is no profile", "\x1f\x8bnor this", "{}"} {
		if _, err := flame.Parse([]byte(in)); !errors.Is(err, flame.ErrProfile) {
			t.Errorf("%q: error %v, want ErrProfile", in, err)
		}
	}
}
