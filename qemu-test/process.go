package qemutest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a running program. Its methods may be called from any goroutine.
type Process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // written before done is closed
}

// start runs a command whose thread has gone through enter first, which may
// move it into namespaces. The program is the leader of a process group of its
// own and dies with this process.
func start(name string, cmd *exec.Cmd, enter func() error) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &unix.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	cmd.WaitDelay = 2 * time.Second
	p := &Process{name: name, cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The thread is never unlocked: it ends with this goroutine, and with it
		// whatever namespaces it entered. It must outlive the program, because the
		// kernel sends the death signal when the thread that forked ends.
		runtime.LockOSThread()
		defer close(p.done)
		if enter != nil {
			if err := enter(); err != nil {
				started <- fmt.Errorf("qemutest: %s: %w", name, err)
				return
			}
		}
		if err := cmd.Start(); err != nil {
			started <- fmt.Errorf("qemutest: %s: %w", name, err)
			return
		}
		started <- nil
		p.err = cmd.Wait()
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait returns when the program has ended: nil for exit status 0.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("qemutest: %s: %w", p.name, p.err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("qemutest: %s is still running: %w", p.name, context.Cause(ctx))
	}
}

// Signal sends a signal to the program alone.
func (p *Process) Signal(s unix.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("qemutest: %s: %w", p.name, err)
	}
	return nil
}

// Kill ends the program and its process group and returns when it is gone.
func (p *Process) Kill() {
	select {
	case <-p.done:
	default:
		// While the program has not been waited for, its group id cannot belong to
		// anybody else.
		_ = unix.Kill(-p.PID(), unix.SIGKILL)
		<-p.done
	}
}
