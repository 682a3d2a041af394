// Package leg implements one request to one engine: its lifetime, its time limits, its
// header, and the class of its failure.
//
//	Origin.Begin(pick, Wait) ──▶ Leg ──Send──▶ answer
//	                              │ ended by: the client, a limit, the instance's end, End
//	                              └─JudgeError, JudgeStatus, JudgeEvent, ...──▶ Failure{Class, Rule}
//
// It knows neither the order of legs nor the client's answer.
package leg
