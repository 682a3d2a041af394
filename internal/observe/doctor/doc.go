// Package doctor diagnoses a fleet: its problems, their causes and remedies.
//
//	Picture ── checks ──▶ []Finding, most severe first
//
// A picture has four parts: etcd, the members, the proxies, the agents. A check is a method of
// the part that it examines, or of the picture if it examines several. It does no I/O and has
// no clock: the caller gathers the picture. Data that the caller could not get is in
// Picture.Unseen and reported, so that no findings means a healthy fleet.
package doctor
