// Package doctor finds out what is wrong with a fleet, why, and what helps.
//
//	Picture ── checks ──▶ []Finding, the gravest first
//
// A picture has four parts: etcd, the members, the proxies, the agents. A check is a small
// method of the part that it looks at, or of the picture if it looks at several. It asks
// nobody and has no clock of its own: another party has gathered the picture. What a check
// needs and could not be had is in the picture as unseen, and is said, so that silence
// means health.
package doctor
