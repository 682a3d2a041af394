// Package target starts what is measured, as processes pinned to one core, and an etcd in
// which the engines are registered for our proxy. Lab.Close stops everything.
package target
