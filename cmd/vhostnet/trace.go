package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/coalesce/trace"
)

// traceBuffer is how many records may wait for the file: some tens of
// milliseconds of the busiest traffic, a few megabytes.
const traceBuffer = 1 << 14

// traceFile is what serve --trace writes. A nil one is none.
type traceFile struct {
	f *os.File
	w *trace.Writer
}

// openTrace makes the file of --trace, if it was asked for.
func (f *deviceFlags) openTrace() (*traceFile, error) {
	if f.Trace == "" {
		return nil, nil
	}
	// It says when the guest had traffic, and how much.
	out, err := os.OpenFile(f.Trace, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--trace: %w", err)
	}
	return &traceFile{out, trace.NewWriter(out, traceBuffer)}, nil
}

func learns(s coalesce.EngineSpec) bool { return s.Kind > coalesce.EngineFixed }

// hook is what the device's workers call.
func (t *traceFile) hook() func(int, *coalesce.Observation, coalesce.Decision, coalesce.Advice) {
	if t == nil {
		return nil
	}
	return func(queue int, o *coalesce.Observation, d coalesce.Decision, a coalesce.Advice) {
		t.w.Add(trace.NewRecord(queue, o, d, a))
	}
}

// close writes the rest. That a trace is incomplete harms nobody but its reader,
// so it is a warning.
func (t *traceFile) close(log *slog.Logger) {
	if t == nil {
		return
	}
	if err := errors.Join(t.w.Close(), t.f.Close()); err != nil {
		log.Warn("the trace is incomplete", "file", t.f.Name(), "error", err)
	}
	log.Info("trace", "file", t.f.Name(), "records", t.w.Written(), "dropped", t.w.Dropped())
}
