package main

import (
	"errors"
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// distanceBlock is how many rounds are timed together. The best block counts: others
// had a processor in the rest, or it was waking up.
const distanceBlock = 100

// distance returns how long a cache line takes from one processor to the other and
// becomes writable there, in nanoseconds: half of what a word takes there and back.
// Where processors are somebody's threads, that changes by the minute, and with it
// what every back-end can do, though not in the same proportion. It is 0 for one
// processor and itself.
func distance(cores [2]int, blocks int) (float64, error) {
	if cores[0] == cores[1] {
		return 0, nil
	}
	var word struct {
		_ [64]byte
		n atomic.Uint32
		_ [64]byte
	}
	end := uint32(2 * distanceBlock * blocks)
	best := time.Duration(math.MaxInt64)
	play := func(core int, first uint32) error {
		runtime.LockOSThread() // never unlocked: the thread ends bound as it is
		var set unix.CPUSet
		set.Set(core)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			word.n.Store(end) // lets the other go
			return err
		}
		start := time.Now()
		for n := first; n < end; n += 2 {
			for v := word.n.Load(); v != n; v = word.n.Load() {
				if v == end {
					return nil
				}
			}
			word.n.Store(n + 1)
			if first == 0 && n%(2*distanceBlock) == 0 {
				now := time.Now()
				if n > 0 {
					best = min(best, now.Sub(start))
				}
				start = now
			}
		}
		return nil
	}
	errs := make(chan error, 2)
	go func() { errs <- play(cores[0], 0) }()
	go func() { errs <- play(cores[1], 1) }()
	if err := errors.Join(<-errs, <-errs); err != nil {
		return 0, err
	}
	return float64(best.Nanoseconds()) / (2 * distanceBlock), nil
}
