// Package plot draws simple charts as SVG: bars with a spread, and lines. It
// has what the reports need and no more.
package plot
