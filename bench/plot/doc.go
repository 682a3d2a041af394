// Package plot draws charts as SVG.
package plot
