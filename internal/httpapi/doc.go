// Package httpapi is the proxy's HTTP surface, and the only user of gin:
// routes, keys, the admin routes in the words of the reference proxies, the
// probes, and a recovery that keeps broken streams broken.
//
// It is an allow-list: engines have routes without a key (/tokenize, /metrics
// and more), so nothing that is not named here reaches one.
package httpapi
