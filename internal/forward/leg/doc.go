// Package leg is one request to one engine: its life, its limits of time, its
// header, and what its failure was.
//
//	Origin.Begin(pick, Wait) ──▶ Leg ──Send──▶ answer
//	                              │ ended by: the client, a limit, the instance's end, End
//	                              └─JudgeError, JudgeStatus, JudgeEvent, ...──▶ Failure{Class, Rule}
//
// It knows neither the order of legs nor the client's answer.
package leg
