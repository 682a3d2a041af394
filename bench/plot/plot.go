// Package plot draws charts as SVG.
package plot

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Sizes in pixels.
const (
	width  = 760
	left   = 150
	right  = 90
	top    = 44
	barGap = 26
)

// Bar is one bar of a chart.
type Bar struct {
	Label  string
	Value  float64
	Lo, Hi float64 // ends of the line that shows the spread; no line if they are equal
	Strong bool    // drawn in the colour of our own proxy
}

// Bars returns a chart of horizontal bars as SVG. A mark other than 0 is drawn as a vertical
// line with markLabel.
func Bars(title, unit string, bars []Bar, mark float64, markLabel string) string {
	most := mark
	for _, b := range bars {
		most = max(most, b.Value, b.Hi)
	}
	if most <= 0 {
		most = 1
	}
	h := top + barGap*len(bars) + 24
	scale := float64(width-left-right) / most
	var s strings.Builder
	open(&s, h, title)
	for i, b := range bars {
		y := top + barGap*i
		colour := "#9aa7b5"
		if b.Strong {
			colour = "#2b6cb0"
		}
		text(&s, left-8, float64(y+14), "end", 12, b.Label)
		fmt.Fprintf(&s, `<rect x="%d" y="%d" width="%.1f" height="18" fill="%s"/>`+"\n", left, y, max(b.Value*scale, 0), colour)
		if b.Hi > b.Lo {
			lo, hi := left+b.Lo*scale, left+b.Hi*scale
			fmt.Fprintf(&s, `<path d="M%.1f %dH%.1fM%.1f %dv8M%.1f %dv8" stroke="#222" fill="none"/>`+"\n", lo, y+9, hi, lo, y+5, hi, y+5)
		}
		text(&s, left+max(b.Value, b.Hi)*scale+6, float64(y+14), "start", 12, short(b.Value)+" "+unit)
	}
	if mark > 0 {
		x := left + mark*scale
		fmt.Fprintf(&s, `<path d="M%.1f %dV%d" stroke="#c53030" stroke-dasharray="4 3"/>`+"\n", x, top-6, h-20)
		text(&s, x, float64(h-8), "middle", 11, markLabel)
	}
	s.WriteString("</svg>\n")
	return s.String()
}

func open(s *strings.Builder, h int, title string) {
	fmt.Fprintf(s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif">`+"\n", width, h, width, h)
	fmt.Fprintf(s, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, h)
	text(s, 12, 22, "start", 15, title)
}

func text(s *strings.Builder, x, y float64, anchor string, size int, t string) {
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d" fill="#222">%s</text>`+"\n", x, y, anchor, size, html.EscapeString(t))
}

func short(v float64) string {
	switch a := math.Abs(v); {
	case v == 0:
		return "0"
	case a >= 1e6:
		return fmt.Sprintf("%.3gM", v/1e6)
	case a >= 1e4:
		return fmt.Sprintf("%.3gk", v/1e3)
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	default:
		return fmt.Sprintf("%.3g", v)
	}
}
