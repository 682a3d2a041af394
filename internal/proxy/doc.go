// Package proxy wires the parts of a proxy together, runs them, and stops them in
// order. Command proxy gives it settings, a log and a context.
package proxy
