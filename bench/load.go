package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vhostnet/vhostnet/bench/peer"
	"github.com/vhostnet/vhostnet/driver"
)

// holdArgs are the command line of a process with drivers that do nothing, for all
// devices but the first.
type holdArgs struct {
	Dir   string `required:""`
	Count int    `required:""`
}

// heldMessage is written when all drivers are there.
const heldMessage = "held\n"

// Run holds until its input ends.
func (a *holdArgs) Run(s *streams) (err error) {
	for i := 1; i < a.Count; i++ {
		d, err := driver.Dial(socketIn(a.Dir, i), driver.Config{Log: quiet()})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.Close()) }()
	}
	if _, err := io.WriteString(s.out, heldMessage); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, s.in)
	return err
}

// loadArgs is what a driver does.
type loadArgs struct {
	Socket string
	// Mode is sink, source or echo on all pairs, or ping: one frame at a time through
	// an echo, on the first.
	Mode             string
	Size             int
	Pairs, QueueSize int
	Polling          bool
	// Bulk is an echo on the second pair beside a ping.
	Bulk           bool
	WarmUp, Length time.Duration
}

// loadResult is what came of it.
type loadResult struct {
	Packets float64 `json:"packets"`
	Seconds float64 `json:"seconds"`
	// Calls are the device's notifications.
	Calls float64 `json:"calls"`
	// Round trips in microseconds, of a ping.
	P50  float64 `json:"p50_us,omitempty"`
	P99  float64 `json:"p99_us,omitempty"`
	P999 float64 `json:"p99_9_us,omitempty"`
	Max  float64 `json:"max_us,omitempty"`
	// BulkPackets went beside it.
	BulkPackets float64 `json:"bulk_packets,omitempty"`
}

// loadCommand is the command line of a driver.
type loadCommand struct {
	Order string `arg:""`
}

// Run drives once.
func (c *loadCommand) Run(s *streams) (err error) {
	var a loadArgs
	if err := json.Unmarshal([]byte(c.Order), &a); err != nil {
		return err
	}
	// Queue pairs share a processor as a guest's threads do: the kernel divides it.
	runtime.GOMAXPROCS(a.Pairs + 1)
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: a.Socket, Net: "unix"})
	if err != nil {
		return err
	}
	d, err := driver.New(conn, driver.Config{QueuePairs: a.Pairs, QueueSize: a.QueueSize, Polling: a.Polling, Log: quiet()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if a.Pairs > 1 {
		if err := d.SetQueuePairs(a.Pairs); err != nil {
			return err
		}
	}
	var r loadResult
	if a.Mode == "ping" {
		r, err = ping(s.ctx, d, a)
	} else {
		r, err = bulk(s.ctx, d, a)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(s.out).Encode(r)
}

// bulk drives all pairs at once.
func bulk(ctx context.Context, d *driver.Driver, a loadArgs) (r loadResult, err error) {
	var wg sync.WaitGroup
	results, errs := make([]peer.Window, a.Pairs), make([]error, a.Pairs)
	for i := range a.Pairs {
		l, err := newLoop(d.Pair(i), peer.Traffic{Mode: a.Mode, Size: a.Size})
		if err != nil {
			return r, err
		}
		wg.Go(func() {
			results[i], errs[i] = l.measure(ctx, peer.Order{WarmUp: a.WarmUp, Length: a.Length, BackEnd: os.Getpid()})
		})
	}
	wg.Wait()
	for _, w := range results {
		r.Packets += w.Packets
		r.Calls += w.Calls
		r.Seconds = max(r.Seconds, w.Seconds)
	}
	return r, errors.Join(errs...)
}

// ping sends one frame at a time on the first pair.
func ping(ctx context.Context, d *driver.Driver, a loadArgs) (r loadResult, err error) {
	l, err := newLoop(d.Pair(0), peer.Traffic{Mode: "echo", Size: a.Size})
	if err != nil {
		return r, err
	}
	var wg sync.WaitGroup
	var beside peer.Window
	var besideErr error
	if a.Bulk {
		b, err := newLoop(d.Pair(1), peer.Traffic{Mode: "echo", Size: a.Size})
		if err != nil {
			return r, err
		}
		wg.Go(func() {
			beside, besideErr = b.measure(ctx, peer.Order{WarmUp: a.WarmUp, Length: a.Length, BackEnd: os.Getpid()})
		})
	}
	if _, err = l.trips(a.WarmUp); err != nil {
		return r, err
	}
	before := l.p.RX.Counters()
	trips, err := l.trips(a.Length)
	wg.Wait()
	if err = errors.Join(err, besideErr); err != nil {
		return r, err
	}
	l.p.RX.Settle()
	slices.Sort(trips)
	at := func(q float64) float64 {
		return trips[min(int(q*float64(len(trips))), len(trips)-1)].Seconds() * 1e6
	}
	return loadResult{
		Packets: float64(len(trips)), Seconds: a.Length.Seconds(), Calls: float64(l.p.RX.Counters().Sub(before).Notifications),
		P50: at(0.5), P99: at(0.99), P999: at(0.999), Max: at(1), BulkPackets: beside.Packets,
	}, nil
}

// trips measures round trips for a while, at least one.
func (l *loop) trips(length time.Duration) (trips []time.Duration, err error) {
	for start := time.Now(); len(trips) == 0 || time.Since(start) < length; {
		sent := time.Now()
		if l.p.TX.SendPrepared(1, l.size) != 1 {
			return nil, errors.New("no room for one frame")
		}
		l.p.TX.Flush()
		for l.p.RX.Drop(1) == 0 {
			if err := l.ended(l.p.RX.Wait(stall)); err != nil {
				return nil, err
			}
		}
		trips = append(trips, time.Since(sent))
	}
	return trips, nil
}

// footprint returns a process's resident memory in KiB and its number of threads.
func footprint(pid int) (residentKB, threads int, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	return parseFootprint(string(b))
}

func parseFootprint(status string) (residentKB, threads int, err error) {
	for line := range strings.Lines(status) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "VmRSS:":
			residentKB, err = strconv.Atoi(f[1])
		case "Threads:":
			threads, err = strconv.Atoi(f[1])
		}
		if err != nil {
			return 0, 0, err
		}
	}
	if residentKB == 0 || threads == 0 {
		return 0, 0, errors.New("no footprint in a process's status")
	}
	return residentKB, threads, nil
}
