// Package agents keeps conversations of two coding agents, recorded on the wire while the
// real programs worked with the simulated engine (scripts/record-agents.sh), and what
// makes such a recording fit to be committed: every text in it is filler, of the same
// length and the same classes of characters, so that only its structure is left.
//
//	agent ──▶ recorder ──▶ simulated engine, told what to answer (fakevllm.Turn)
//	             │
//	             └──▶ Filler ──▶ recordings/*.txt ──▶ tests send it again
package agents
