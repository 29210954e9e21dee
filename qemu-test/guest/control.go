package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// request is one line from the host. With Stop set ("poweroff" or "reboot")
// the guest ends, else it runs Script with the shell.
type request struct {
	ID      uint64 `json:"id"`
	Script  string `json:"script,omitempty"`
	Stop    string `json:"stop,omitempty"`
	Seconds int    `json:"seconds,omitempty"`
}

// reply is one line to the host. Ready is sent once, without an ID.
type reply struct {
	ID     uint64  `json:"id,omitempty"`
	Ready  bool    `json:"ready,omitempty"`
	Uptime float64 `json:"uptime,omitempty"`
	Output string  `json:"output,omitempty"`
	Exit   int     `json:"exit"`
	Error  string  `json:"error,omitempty"`
}

// serve reads requests from a serial line and runs them side by side.
func serve(device string) (restart bool, err error) {
	line, err := openSerial(device)
	if err != nil {
		return false, err
	}
	defer line.Close()
	var mu sync.Mutex // one reply at a time on the line
	send := func(r reply) {
		raw, err := json.Marshal(r)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if _, err := line.Write(append(raw, '\n')); err != nil {
			say("control: %v", err)
		}
	}
	send(reply{Ready: true, Uptime: uptime()})
	say("ready")
	in := bufio.NewReaderSize(line, 64<<10)
	for {
		raw, err := in.ReadBytes('\n')
		if err != nil {
			return false, fmt.Errorf("control: %w", err)
		}
		var r request
		if err := json.Unmarshal(raw, &r); err != nil {
			send(reply{ID: r.ID, Exit: -1, Error: err.Error()})
			continue
		}
		if r.Stop != "" {
			send(reply{ID: r.ID})
			return r.Stop == "reboot", nil
		}
		go func() { send(execute(r)) }()
	}
}

// prelude makes the shell use the real programs: busybox prefers applets of its
// own to what the search path has.
const prelude = `ip() { /bin/ip "$@"; }; tc() { /bin/tc "$@"; }
`

// execute runs one script with a limit on its time.
func execute(r request) reply {
	limit := time.Duration(r.Seconds) * time.Second
	if limit <= 0 {
		limit = time.Minute
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", prelude+r.Script)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	answer := reply{ID: r.ID, Output: string(out)}
	exit, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		answer.Exit, answer.Error = -1, fmt.Sprintf("no end after %v", limit)
	case exited:
		answer.Exit = exit.ExitCode()
	case err != nil:
		answer.Exit, answer.Error = -1, err.Error()
	}
	return answer
}

// openSerial opens a serial line for bytes as they are.
func openSerial(device string) (*os.File, error) {
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("control: open %s: %w", device, err)
	}
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("control: %s: %w", device, err)
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cflag = unix.B115200 | unix.CS8 | unix.CREAD | unix.CLOCAL
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, t); err != nil {
		return nil, fmt.Errorf("control: %s: %w", device, err)
	}
	return os.NewFile(uintptr(fd), device), nil
}

// uptime is seconds since the kernel started.
func uptime() float64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0
	}
	return float64(t.Sec) + float64(t.Nsec)/1e9
}
