package main

import (
	"io"
	"log/slog"

	"github.com/sirupsen/logrus"
	logrusslog "github.com/sirupsen/logrus/hooks/slog"
)

// logFlags say what is logged, and how; the log goes to standard error.
type logFlags struct {
	LogLevel  string `enum:"error,warn,info,debug,trace" default:"info" placeholder:"LEVEL" group:"watch" help:"Least severe messages to log: error, warn, info (default), debug or trace."`
	LogFormat string `enum:"text,json" default:"text" placeholder:"FORMAT" group:"watch" help:"Log lines as text (default) or as json objects, to standard error."`
}

// logger builds the logrus logger and gives it out in the form that the
// libraries take.
func (f logFlags) logger(w io.Writer) (*slog.Logger, error) {
	level, err := logrus.ParseLevel(f.LogLevel)
	if err != nil {
		return nil, usageError{err}
	}
	l := logrus.New()
	l.SetOutput(w)
	l.SetLevel(level)
	if f.LogFormat == "json" {
		l.SetFormatter(&logrus.JSONFormatter{})
	} else {
		l.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, QuoteEmptyFields: true})
	}
	return slog.New(logrusslog.NewHandler(l, nil)), nil
}
