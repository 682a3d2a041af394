// Package httpapi has the proxy's HTTP routes, and is the only user of gin. It has
// the clients' routes, the operators' routes in the forms of the reference proxies,
// the health routes, the checks of keys, and what happens to a panic.
//
// The routes are an allow-list: only a path that is named here reaches an engine,
// since engines have routes that need no key (/tokenize, /metrics and more).
package httpapi
