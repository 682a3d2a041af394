// Package testkit holds what tests of several packages share: a real etcd, in
// the test's own process or in one that can be killed and paused, waiting for
// a condition, and golden files. Only tests import it.
package testkit
