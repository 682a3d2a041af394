// Package agents contains conversations of three coding agents, recorded on the wire while the real
// programs worked with the simulated engine (scripts/record-agents.sh), and the code that prepares such
// a recording for the repository: every text is replaced by filler of the same length and the same
// character classes, so that only the structure remains.
//
//	agent ──▶ recorder ──▶ simulated engine with scripted answers (fakevllm.Turn)
//	             │
//	             └──▶ Filler ──▶ recordings/*.txt ──▶ replayed by tests
package agents
