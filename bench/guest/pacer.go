package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// pacer sends at an even rate and sleeps in between: there may be no processor to
// spin on, as paced programs do.
type pacer struct {
	// rate is per second.
	rate   int
	length time.Duration
	// sent and refused count what the kernel took and what it had no room for.
	sent, refused int
}

// run calls send with numbers from 0 on until the time is over. It must run in a
// thread of its own.
func (p *pacer) run(ctx context.Context, send func(n int) error) error {
	// Sleep is as exact as the kernel's timers are.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	// What is due after a sleep is sent in one go, but no more than a burst after a
	// long one.
	const gap, burst = 50 * time.Microsecond, 64
	start, due := time.Now(), 0.0
	for last := start; ; {
		now := time.Now()
		if now.Sub(start) >= p.length {
			return p.check()
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		due = min(due+now.Sub(last).Seconds()*float64(p.rate), burst)
		for last = now; due >= 1; due-- {
			switch err := send(p.sent + p.refused); {
			case err == nil:
				p.sent++
			case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EAGAIN):
				p.refused++
			default:
				return err
			}
		}
		_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(gap)}, nil)
	}
}

// check finds out whether what was offered was the rate.
func (p *pacer) check() error {
	// What the machine did instead is not known, but it was not this workload.
	const least = 0.75
	if offered, want := p.sent+p.refused, float64(p.rate)*p.length.Seconds(); float64(offered) < least*want {
		return fmt.Errorf("the sender was held up: it offered %d of %.0f", offered, want)
	}
	return nil
}

// extra is what a report says of it.
func (p *pacer) extra() map[string]float64 {
	s := p.length.Seconds()
	return map[string]float64{
		"offered/s": float64(p.rate), "sent/s": float64(p.sent) / s, "refused/s": float64(p.refused) / s,
	}
}

// onHost runs f in the namespace of the host side, in a thread of its own, and on
// the host's processor where that is not the guest's.
func onHost(s site, f func() error) error {
	return s.Namespace().Do(func() error {
		if s.Lane() == "native" {
			var set unix.CPUSet
			set.Set(hostCPU)
			if err := unix.SchedSetaffinity(0, &set); err != nil {
				return fmt.Errorf("bind to processor %d: %w", hostCPU, err)
			}
		}
		return f()
	})
}
