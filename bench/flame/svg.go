package flame

import (
	"fmt"
	"html"
	"slices"
	"strings"
)

// node is a function in a stack.
type node struct {
	name     string
	total    int64
	children map[string]*node
}

func (n *node) child(name string) *node {
	c := n.children[name]
	if c == nil {
		c = &node{name: name, children: make(map[string]*node)}
		n.children[name] = c
	}
	return c
}

// Measures in pixels.
const (
	width  = 1200
	row    = 17
	margin = 34
	least  = 0.6 // narrower ones are left out
)

// SVG draws stacks from the top down, widths in proportion to their time. The
// pointer over a box shows name and share.
func (f Folded) SVG(title string) string {
	root := &node{name: "all", children: make(map[string]*node)}
	depth := 0
	for stack, v := range f {
		names := strings.Split(stack, ";")
		depth = max(depth, len(names))
		n := root
		n.total += v
		for _, name := range names {
			n = n.child(name)
			n.total += v
		}
	}
	depth = min(depth, 60)
	height := margin + row*(depth+1) + 8
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="monospace" font-size="11">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/><text x="8" y="20" font-size="15" font-family="sans-serif">%s</text>`+"\n", width, height, html.EscapeString(title))
	if root.total > 0 {
		root.draw(&b, 0, 0, depth, float64(width)/float64(root.total), root.total)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (n *node) draw(b *strings.Builder, x float64, level, depth int, scale float64, all int64) {
	w := float64(n.total) * scale
	if w < least || level > depth {
		return
	}
	y := margin + row*level
	fmt.Fprintf(b, `<g><title>%s %.2f %%</title><rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" stroke="#fff" stroke-width=".5"/>`,
		html.EscapeString(n.name), 100*float64(n.total)/float64(all), x, y, w, row-1, colour(n.name))
	const letter = 6.7
	if room := int(w/letter) - 1; room > 3 {
		name := n.name[strings.LastIndexByte(n.name, '/')+1:]
		fmt.Fprintf(b, `<text x="%.1f" y="%d">%s</text>`, x+3, y+12, html.EscapeString(name[:min(len(name), room)]))
	}
	b.WriteString("</g>\n")
	names := make([]string, 0, len(n.children))
	for name := range n.children {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		c := n.children[name]
		c.draw(b, x, level+1, depth, scale, all)
		x += float64(c.total) * scale
	}
}

// colour tells whose a function is: the kernel's door, the runtime, the
// standard library, ours, others.
func colour(name string) string {
	switch {
	case strings.Contains(name, "yscall"):
		return "#e58a6a"
	case strings.HasPrefix(name, "runtime."):
		return "#c9c2b8"
	case strings.Contains(name, "pdmesh/"):
		return "#8fb8e8"
	case strings.Contains(name, "."+"com/"), strings.Contains(name, ".org/"):
		return "#c9b3e0"
	default:
		return "#f0cf7e"
	}
}

// Text is the folded form that other tools read, a stack per line.
func (f Folded) Text() string {
	lines := make([]string, 0, len(f))
	for stack, v := range f {
		lines = append(lines, fmt.Sprintf("%s %d\n", stack, v))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
