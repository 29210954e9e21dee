package qemutest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
)

// Monitor is a connection to QEMU's machine monitor (QMP).
type Monitor struct {
	mu      sync.Mutex // one command at a time
	line    *os.File
	replies chan monitorReply
	entered bool
}

type monitorReply struct {
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class       string `json:"class"`
		Description string `json:"desc"`
	} `json:"error"`
}

func newMonitor(line *os.File) *Monitor {
	m := &Monitor{line: line, replies: make(chan monitorReply, 1)}
	go func() {
		defer close(m.replies)
		in := bufio.NewReader(line)
		for {
			raw, err := in.ReadBytes('\n')
			if err != nil {
				return
			}
			var r monitorReply
			// The greeting and events are neither a return nor an error.
			if json.Unmarshal(raw, &r) == nil && (r.Return != nil || r.Error != nil) {
				m.replies <- r
			}
		}
	}()
	return m
}

// Execute runs a monitor command and returns its result as JSON.
func (m *Monitor) Execute(ctx context.Context, command string, arguments map[string]any) (json.RawMessage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.entered {
		if _, err := m.execute(ctx, "qmp_capabilities", nil); err != nil {
			return nil, err
		}
		m.entered = true
	}
	return m.execute(ctx, command, arguments)
}

func (m *Monitor) execute(ctx context.Context, command string, arguments map[string]any) (json.RawMessage, error) {
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	raw, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("qemutest: monitor: %w", err)
	}
	if _, err := m.line.Write(append(raw, '\n')); err != nil {
		return nil, fmt.Errorf("qemutest: monitor: %s: %w", command, err)
	}
	select {
	case r, ok := <-m.replies:
		if !ok {
			return nil, fmt.Errorf("qemutest: monitor: %s: %w", command, errors.New("QEMU has gone"))
		}
		if r.Error != nil {
			return nil, fmt.Errorf("qemutest: monitor: %s: %s: %s", command, r.Error.Class, r.Error.Description)
		}
		return r.Return, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("qemutest: monitor: %s: %w", command, context.Cause(ctx))
	}
}
