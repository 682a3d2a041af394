// Package flow is the order of the legs of one request, and what follows from their
// failures: who is tried, what is left, when to give up.
//
//	pick P ─▶ dialect ─▶ its flow:
//	  sequential   prefill ─▶ hand-over ─▶ pick D ─▶ decode ─▶ client
//	  notified     pick D ─▶ prefill ─▶ a notification of each rank ─▶ decode ─▶ client
//	  concurrent   pick D ─▶ prefill and decode at once ─▶ client
//	      any failure before the commit: another instance, or another pair
//	none left: one decode instance alone, or an error
//
// A flow knows no dialect, and a dialect no flow but by name.
package flow
