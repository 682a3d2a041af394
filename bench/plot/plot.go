package plot

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Measures of a chart in pixels.
const (
	width  = 760
	left   = 150
	right  = 90
	top    = 44
	barGap = 26
	height = 320
	bottom = 44
)

// Bar is one value of a bar chart, with its smallest and largest.
type Bar struct {
	Label         string
	Value, Lo, Hi float64
	// Strong draws it in the colour of what the chart is about.
	Strong bool
}

// Bars is a chart of horizontal bars. Mark, if not 0, is drawn as a line with
// MarkLabel.
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

// Line is one line of a chart.
type Line struct {
	Label string
	X, Y  []float64
	// Dashed is for lines that were computed from others.
	Dashed bool
}

// Lines is a chart of lines over one axis, both from zero.
func Lines(title, xUnit, yUnit string, lines []Line) string {
	var maxX, maxY float64
	for _, l := range lines {
		for i := range l.X {
			maxX, maxY = max(maxX, l.X[i]), max(maxY, l.Y[i])
		}
	}
	maxX, maxY = max(maxX, 1e-9), max(maxY*1.1, 1e-9)
	const x0, y0 = 70, height - bottom
	sx, sy := float64(width-x0-right)/maxX, float64(y0-top)/maxY
	var s strings.Builder
	open(&s, height, title)
	for i := range 5 {
		v := maxY * float64(i) / 4
		y := y0 - v*sy
		fmt.Fprintf(&s, `<path d="M%d %.1fH%d" stroke="#ddd"/>`+"\n", x0, y, width-right)
		text(&s, x0-6, y+4, "end", 11, short(v))
		x := maxX * float64(i) / 4
		text(&s, x0+x*sx, y0+16, "middle", 11, short(x))
	}
	text(&s, x0, top-8, "end", 11, yUnit)
	text(&s, float64(width-right), y0+32, "end", 11, xUnit)
	colours := []string{"#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280"}
	for i, l := range lines {
		var points strings.Builder
		for k := range l.X {
			fmt.Fprintf(&points, "%.1f,%.1f ", x0+l.X[k]*sx, y0-l.Y[k]*sy)
		}
		dash := ""
		if l.Dashed {
			dash = ` stroke-dasharray="5 4"`
		}
		colour := colours[i%len(colours)]
		fmt.Fprintf(&s, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.5"%s/>`+"\n", strings.TrimSpace(points.String()), colour, dash)
		y := float64(top + 16*i)
		fmt.Fprintf(&s, `<rect x="%d" y="%.0f" width="10" height="3" fill="%s"/>`+"\n", width-right+6, y, colour)
		text(&s, float64(width-right+20), y+5, "start", 11, l.Label)
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
