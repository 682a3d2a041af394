// Package logging builds the one logger of a program and holds the names of
// the fields that log lines share, so that a line of the agent and a line of
// the proxy about one instance can be found by one search.
//
// Everything else in the project takes a logrus.FieldLogger as an argument and
// never touches logrus' package-level logger.
package logging
