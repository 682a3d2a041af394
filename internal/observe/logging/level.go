package logging

import (
	"github.com/sirupsen/logrus"
)

// Level is the level of a logger, which may be changed while the logger is used. It is
// safe for concurrent use.
type Level struct {
	log   *logrus.Logger
	first logrus.Level
}

// NewLevel returns the Level of a logger.
func NewLevel(log *logrus.Logger) *Level { return &Level{log: log, first: log.GetLevel()} }

// Name returns the current level, one of Levels.
func (l *Level) Name() string { return nameOf(l.log.GetLevel()) }

// Set changes the level to one of Levels.
func (l *Level) Set(name string) error {
	to, err := parseLevel(name)
	if err != nil {
		return err
	}
	l.set(to)
	return nil
}

// More raises the verbosity by one level.
func (l *Level) More() { l.set(min(l.log.GetLevel()+1, logrus.TraceLevel)) }

// Reset restores the initial level.
func (l *Level) Reset() { l.set(l.first) }

func (l *Level) set(to logrus.Level) {
	if was := l.log.GetLevel(); was != to {
		l.log.SetLevel(to)
		l.log.Logf(min(to, logrus.WarnLevel), "the log level is %s now, it was %s", nameOf(to), nameOf(was))
	}
}

// nameOf returns the name of a level as New accepts it.
func nameOf(level logrus.Level) string {
	if level == logrus.WarnLevel {
		return "warn" // logrus says warning
	}
	return level.String()
}
