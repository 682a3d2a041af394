// Package doctor finds out what is wrong with a fleet, why, and what helps.
//
//	Picture ── checks ──▶ []Finding, the gravest first
//
// A check is a small function over what somebody else has gathered: it asks nobody and
// has no clock of its own. What a check needs and could not be had stands in the picture
// as unseen, and is said, so that silence means health.
package doctor
