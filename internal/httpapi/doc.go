// Package httpapi defines the proxy's HTTP routes, and is the only user of gin. It has
// the client routes, the operator routes in the forms of the reference proxies, the
// health routes, the key checks and the panic handler.
//
// The routes are an allow-list: only the paths listed here reach an engine, because
// engines have routes that need no key (for example /tokenize and /metrics).
package httpapi
