// Package logging builds the logger of a program. It defines the names of common log fields, so that one
// search finds the lines of the agent and the proxy about an instance.
//
// All other packages take a logrus.FieldLogger as an argument and do not use
// the package-level logger of logrus.
package logging
