package main

import (
	"context"
	"fmt"
	"time"

	"github.com/vhostnet/vhostnet/driver"
)

const (
	queueSize = 256
	// batch is how many frames the driver moves between two publications, as
	// network stacks and DPDK do.
	batch = 32
	// window is how many frames are on their way in an echo.
	window = queueSize / 2
	// warmUp precedes each measurement.
	warmUp = 50 * time.Millisecond
	// stall is how long a blocking driver waits before it gives up: nothing
	// has come in a time in which millions should have.
	stall = 2 * time.Second
)

// benchCase is one thing to measure.
type benchCase struct {
	Mode string `json:"mode"`
	// Size is the length of a frame in bytes.
	Size int `json:"size"`
	// Driver is "polling" or "blocking".
	Driver string `json:"driver"`
}

func (c benchCase) String() string { return fmt.Sprintf("%s, %d B, %s", c.Mode, c.Size, c.Driver) }

func allCases() []benchCase {
	var cases []benchCase
	for _, mode := range []string{"sink", "source", "echo"} {
		for _, size := range []int{64, 1500} {
			for _, wait := range []string{"polling", "blocking"} {
				cases = append(cases, benchCase{mode, size, wait})
			}
		}
	}
	return cases
}

// sample is the outcome of one measurement.
type sample struct {
	packetsPerSecond       float64
	notificationsPerPacket float64
	kicksPerPacket         float64
}

// measure starts a device and a driver for a case and runs traffic.
func measure(ctx context.Context, o *options, c benchCase) (s sample, err error) {
	// The device outlives an interruption, so that the driver can stop in order.
	conn, wait, err := startDevice(context.WithoutCancel(ctx), o, c)
	if err != nil {
		return sample{}, err
	}
	// VIRTIO_NET_F_MQ has no use here; neither has the control queue.
	d, err := driver.New(conn, driver.Config{QueueSize: queueSize, Polling: c.Driver == "polling", Log: quiet()})
	if err == nil {
		s, err = traffic(ctx, d, c, o.Duration)
		if cerr := d.Close(); err == nil {
			err = cerr
		}
	}
	if werr := wait(); err == nil {
		err = werr
	}
	return s, err
}

// traffic runs a case's loop, first to warm up.
func traffic(ctx context.Context, d *driver.Driver, c benchCase, length time.Duration) (sample, error) {
	p := d.Pair(0)
	frame := make([]byte, c.Size)
	copy(frame, []byte{0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 0x88, 0xb5})
	if err := p.TX.Prepare(frame); err != nil {
		return sample{}, err
	}
	l := loop{p: p, size: c.Size}
	step := map[string]func() error{"sink": l.sink, "source": l.source, "echo": l.echo}[c.Mode]
	if _, err := l.run(ctx, warmUp, step); err != nil {
		return sample{}, err
	}
	p.RX.Settle()
	p.TX.Settle()
	rx0, tx0 := p.RX.Counters(), p.TX.Counters()
	took, err := l.run(ctx, length, step)
	p.RX.Settle()
	p.TX.Settle()
	rx, tx := p.RX.Counters().Sub(rx0), p.TX.Counters().Sub(tx0)
	if err != nil {
		return sample{}, err
	}
	packets := float64(rx.Packets)
	if c.Mode == "sink" {
		packets = float64(tx.Completed)
	}
	if packets == 0 {
		return sample{}, fmt.Errorf("no packets in %v", took)
	}
	return sample{
		packetsPerSecond:       packets / took.Seconds(),
		notificationsPerPacket: float64(rx.Notifications+tx.Notifications) / packets,
		kicksPerPacket:         float64(rx.Kicks+tx.Kicks) / packets,
	}, nil
}

// loop is the driver's side of the traffic. Each step moves one batch, or waits.
type loop struct {
	p    *driver.Pair
	size int
	out  int // frames on their way in an echo
}

// run repeats a step for the given time and returns how long it really took.
func (l *loop) run(ctx context.Context, length time.Duration, step func() error) (time.Duration, error) {
	start := time.Now()
	for i := 1; ; i++ {
		if err := step(); err != nil {
			return 0, err
		}
		if i%16 != 0 {
			continue
		}
		if took := time.Since(start); took >= length {
			return took, nil
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
	}
}

func (l *loop) sink() error {
	if l.p.TX.SendPrepared(batch, l.size) > 0 {
		l.p.TX.Flush()
		return nil
	}
	return stalled(l.p.TX.Wait(stall))
}

func (l *loop) source() error {
	if l.p.RX.Drop(2*batch) > 0 {
		return nil
	}
	return stalled(l.p.RX.Wait(stall))
}

func (l *loop) echo() error {
	l.out -= l.p.RX.Drop(2 * batch)
	sent := l.p.TX.SendPrepared(window-l.out, l.size)
	l.out += sent
	if sent > 0 {
		l.p.TX.Flush()
		return nil
	}
	return stalled(l.p.RX.Wait(stall))
}

// stalled makes an error of a wait that nothing ended.
func stalled(ready bool, err error) error {
	if err == nil && !ready {
		return fmt.Errorf("nothing came back in %v", stall)
	}
	return err
}
