package journal

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// raftLogger sends raft's log to logger. What raft logs as information is
// logged for debugging here.
func raftLogger(logger *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Info, Output: io.Discard})
	l.RegisterSink(raftSink{logger})
	return l
}

type raftSink struct{ logger *slog.Logger }

func (s raftSink) Accept(name string, level hclog.Level, msg string, args ...any) {
	at := slog.LevelDebug
	switch level {
	case hclog.Warn:
		at = slog.LevelWarn
	case hclog.Error:
		at = slog.LevelError
	}
	s.logger.Log(context.Background(), at, name+": "+msg, args...)
}

// pebbleLogger sends pebble's log to logger.
type pebbleLogger struct{ logger *slog.Logger }

func (l pebbleLogger) Infof(format string, args ...any) {
	if l.logger.Enabled(context.Background(), slog.LevelDebug) {
		l.logger.Debug("pebble: " + fmt.Sprintf(format, args...))
	}
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.logger.Error("pebble: " + fmt.Sprintf(format, args...))
}

// Fatalf ends the process, as pebble demands: after a failed write to its own
// log nobody knows what is on disk until the log is opened anew.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	msg := "pebble: " + fmt.Sprintf(format, args...)
	l.logger.Error(msg)
	panic(msg)
}
