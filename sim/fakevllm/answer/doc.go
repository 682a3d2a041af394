// Package answer writes the answers of the routes that generate, whole and as streams. It knows
// an admitted request (Reply) and the tokens that were generated for it (Lane), and no engine.
package answer
