package peer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Place is where a process runs.
type Place struct {
	// Core is the processor that it is bound to; negative: to none.
	Core int
	// Nice is its priority, -20 (highest) to 19; other than 0 it may need root.
	Nice int
	// Net is its network namespace, nil the caller's.
	Net *Network
}

// Process is a running program. It dies with this one.
type Process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // written before done is closed
}

// start runs a command at a place.
func start(name string, cmd *exec.Cmd, at Place) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &unix.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true // an interrupt from the keyboard is for us
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	cmd.WaitDelay = time.Second
	p := &Process{name: name, cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// A child inherits core and namespace from the thread that forks. The
		// thread is never unlocked, so it ends with this goroutine; it outlives
		// the child, which would otherwise get its death signal.
		runtime.LockOSThread()
		defer close(p.done)
		err := at.enter()
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("peer: start %s: %w", name, err)
	}
	return p, nil
}

// enter moves the calling thread.
func (at Place) enter() error {
	if at.Core >= 0 {
		var set unix.CPUSet
		set.Set(at.Core)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("core %d: %w", at.Core, err)
		}
	}
	if at.Nice != 0 {
		if err := unix.Setpriority(unix.PRIO_PROCESS, 0, at.Nice); err != nil {
			return fmt.Errorf("priority %d: %w", at.Nice, err)
		}
	}
	if at.Net != nil {
		if err := netns.Set(at.Net.handle); err != nil {
			return fmt.Errorf("network namespace: %w", err)
		}
	}
	return nil
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// ended returns an error if the program has ended.
func (p *Process) ended() error {
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("peer: %s has ended: %w", p.name, p.err)
		}
		return fmt.Errorf("peer: %s has ended", p.name)
	default:
		return nil
	}
}

// patience is how long a program has to start, to answer and to end.
const patience = 10 * time.Second

// stop asks the program to end, with SIGTERM, and kills it if it does not.
func (p *Process) stop() error {
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("peer: %s: %w", p.name, err)
	}
	return p.await()
}

// await waits for the end of a program that has been told to end.
func (p *Process) await() error {
	select {
	case <-p.done:
		return nil
	case <-time.After(patience):
	}
	// It is ours and has not been waited for, so its number is nobody else's.
	_ = p.cmd.Process.Kill()
	<-p.done
	return fmt.Errorf("peer: %s had to be killed", p.name)
}

// cpuClock is the clock id of a process's processor time: CPUCLOCK_SCHED of all
// its threads, which clock_getcpuclockid makes of the process id.
func cpuClock(pid int) int32 { return int32(^uint32(pid)<<3 | 2) }

// CPUTime returns the processor time of all threads of a process.
func CPUTime(pid int) (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(cpuClock(pid), &ts); err != nil {
		return 0, fmt.Errorf("peer: processor time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// tick is the unit of /proc/stat, USER_HZ on all of Linux's architectures but one
// that is not supported.
const tick = 10 * time.Millisecond

// Idle returns for how long each processor has been idle, by its number, to 20 ms.
func Idle() (map[int]time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	return idle(string(b))
}

// idle reads the lines of processors: a name, ticks of user, nice, system, idle,
// waiting for I/O, and others. Of what is waited for, there is time to do.
func idle(stat string) (map[int]time.Duration, error) {
	cores := map[int]time.Duration{}
	for line := range strings.Lines(stat) {
		f := strings.Fields(line)
		if len(f) == 0 || !strings.HasPrefix(f[0], "cpu") || f[0] == "cpu" {
			continue
		}
		core, err := strconv.Atoi(f[0][len("cpu"):])
		if err != nil || len(f) < 6 {
			return nil, fmt.Errorf("peer: stat: %q", line)
		}
		for _, ticks := range f[4:6] {
			n, err := strconv.ParseInt(ticks, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("peer: stat: %w", err)
			}
			cores[core] += time.Duration(n) * tick
		}
	}
	return cores, nil
}

// poll calls f until it returns true, for a while, as long as p lives.
func poll(ctx context.Context, p *Process, what string, f func() bool) error {
	for end := time.Now().Add(patience); ; {
		if f() {
			return nil
		}
		if err := p.ended(); err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("peer: %s: no %s in %v", p.name, what, patience)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
