// Package robustness runs a whole fleet as child processes under a seeded schedule of faults and
// operators' changes, records a history, and checks it.
//
//   - schedule.go derives the actions of a run from its seed, and nothing else
//   - history.go defines the records of a run
//   - check.go has the rules, as pure functions of a history
//   - fleet_test.go starts the processes and the links between them
//   - faults_test.go and operators_test.go execute the actions
//   - load_test.go sends requests, and checks each answer
//   - robustness_test.go executes a run and checks its history
package robustness
