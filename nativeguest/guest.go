package nativeguest

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

const (
	// budget is how many frames are received, or transmitted, before the other
	// direction gets its turn (NAPI_POLL_WEIGHT).
	budget = 64
	// BufferSize holds the largest frame with its header. A driver for a guest has
	// to be configured with it in both directions.
	BufferSize = virtio.NetHeaderLen + 65535 + 14 + 2*4
	// stopSlots is below how many free descriptors a Linux driver stops its
	// transmit queue.
	stopSlots = 19
)

// Features is what the driver of a guest should accept: the defaults and all
// offloads.
const Features = driver.DefaultFeatures | driver.Offloads

// Config describes a guest.
type Config struct {
	// CPU is the processor that the guest's thread is bound to, -1 for none.
	CPU int
	// InterruptCost is for how long the guest's processor is busy with each
	// notification that it takes, on top of what waking up takes.
	InterruptCost time.Duration
	// Orphan is transmission without NAPI (napi_tx=0): notifications of the
	// transmit queue are wanted only while it is full.
	Orphan bool
}

// Counters are what a guest has counted since it was made.
type Counters struct {
	// RXInterrupts and TXInterrupts count the times that the guest took
	// notifications of a queue; several that came meanwhile are one.
	RXInterrupts, TXInterrupts uint64
	// Polls counts the passes over the receive queue, Stops the times the
	// transmit queue was full, and Lost the frames that the TAP did not take.
	Polls, Stops, Lost uint64
	// Commands counts the limits that the guest's own moderation has set, and
	// CommandErrors those that the device refused.
	Commands, CommandErrors uint64
}

// Guest serves one queue pair. Run belongs to one goroutine, the other methods
// may be called from any.
type Guest struct {
	d    *driver.Driver
	pair *driver.Pair
	port port.PortQueue
	cfg  Config
	wake int
	quit atomic.Bool

	packets []driver.Packet
	iov     [][]byte
	in      [1][]byte
	fds     [4]unix.PollFd

	// rxPoll: the receive queue is being polled. txPoll: its buffers were
	// announced to be back. stopped: the transmit queue was found full.
	rxPoll, txPoll, stopped bool
	// readable: the TAP may have more.
	readable bool

	dim moderator
	c   counters
}

type counters struct {
	rxInterrupts, txInterrupts, polls, stops, lost, commands, commandErrors atomic.Uint64
}

// New makes a guest of a driver's first queue pair and a port that nobody else
// uses, a TAP in the guest's namespace, and configures the port for what the
// driver has negotiated. It takes neither over.
func New(d *driver.Driver, p port.Port, c Config) (*Guest, error) {
	if conf, ok := p.(port.Configurer); ok {
		if err := conf.Configure(virtio.NetHeaderSize(d.Features()), towardsDevice(d.Features())); err != nil {
			return nil, fmt.Errorf("nativeguest: %w", err)
		}
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("nativeguest: eventfd: %w", err)
	}
	g := &Guest{
		d: d, pair: d.Pair(0), port: p.Queue(0), cfg: c, wake: wake,
		packets: make([]driver.Packet, budget), iov: make([][]byte, 0, 2), readable: true,
	}
	for i, fd := range []int{g.port.FD(), g.pair.RX.CallFD(), g.pair.TX.CallFD(), wake} {
		g.fds[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	}
	return g, nil
}

// towardsDevice gives what the guest's stack may ask of the device in the terms
// of its port, to which the device is the guest.
func towardsDevice(f virtio.Features) (g virtio.Features) {
	for _, m := range []struct{ from, to virtio.Features }{
		{virtio.FeatureCSum, virtio.FeatureGuestCSum},
		{virtio.FeatureHostTSO4, virtio.FeatureGuestTSO4},
		{virtio.FeatureHostTSO6, virtio.FeatureGuestTSO6},
		{virtio.FeatureHostECN, virtio.FeatureGuestECN},
		{virtio.FeatureHostUSO, virtio.FeatureGuestUSO4 | virtio.FeatureGuestUSO6},
	} {
		if f.Has(m.from) {
			g |= m.to
		}
	}
	return g
}

// Counters returns a snapshot.
func (g *Guest) Counters() Counters {
	c := &g.c
	return Counters{
		RXInterrupts: c.rxInterrupts.Load(), TXInterrupts: c.txInterrupts.Load(),
		Polls: c.polls.Load(), Stops: c.stops.Load(), Lost: c.lost.Load(),
		Commands: c.commands.Load(), CommandErrors: c.commandErrors.Load(),
	}
}

// Stop makes Run return.
func (g *Guest) Stop() {
	g.quit.Store(true)
	b := [8]byte{1}
	_, _ = unix.Write(g.wake, b[:])
}

// Close frees what New has made. Run must have returned.
func (g *Guest) Close() error { return unix.Close(g.wake) }

// Run is the guest's processor. It returns nil after Stop, and an error when the
// device breaks the rules or the port fails.
func (g *Guest) Run() error {
	// Never unlocked: the thread, with its affinity, ends with the goroutine.
	runtime.LockOSThread()
	if g.cfg.CPU >= 0 {
		var set unix.CPUSet
		set.Set(g.cfg.CPU)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("nativeguest: processor %d: %w", g.cfg.CPU, err)
		}
	}
	stop := g.moderate()
	defer stop()
	g.rxPoll = true
	for !g.quit.Load() {
		if g.rxPoll {
			g.receive()
		}
		if g.txPoll {
			g.reclaim()
		}
		if g.readable && !g.stopped {
			g.transmit()
		}
		if err := errors.Join(g.pair.RX.Err(), g.pair.TX.Err()); err != nil {
			return err
		}
		if err := g.wait(!g.rxPoll && !g.txPoll && (!g.readable || g.stopped)); err != nil {
			return err
		}
	}
	return nil
}

// wait takes interrupts and events, and sleeps until there is one if idle.
func (g *Guest) wait(idle bool) error {
	var now unix.Timespec
	timeout := &now
	if idle {
		timeout = nil
	}
	g.fds[0].Events = unix.POLLIN
	if g.readable || g.stopped {
		// It is looked at anyway, or there is no room for what it has.
		g.fds[0].Events = 0
	}
	if _, err := unix.Ppoll(g.fds[:], timeout, nil); err != nil {
		if errors.Is(err, unix.EINTR) {
			return nil
		}
		return fmt.Errorf("nativeguest: poll: %w", err)
	}
	if g.fds[0].Revents&unix.POLLIN != 0 {
		g.readable = true
	} else if g.fds[0].Revents != 0 {
		return fmt.Errorf("nativeguest: the port has failed")
	}
	if g.fds[1].Revents != 0 && g.pair.RX.Settle() > 0 {
		g.interrupt(&g.c.rxInterrupts)
		g.pair.RX.Disarm()
		g.rxPoll = true
	}
	if g.fds[2].Revents != 0 && g.pair.TX.Settle() > 0 {
		g.interrupt(&g.c.txInterrupts)
		g.pair.TX.Disarm()
		g.txPoll = true
	}
	return nil
}

// interrupt is what taking one costs the processor.
func (g *Guest) interrupt(n *atomic.Uint64) {
	n.Add(1)
	if g.cfg.InterruptCost > 0 {
		for start := time.Now(); time.Since(start) < g.cfg.InterruptCost; {
		}
	}
}

// receive is one NAPI poll.
func (g *Guest) receive() {
	rx := g.pair.RX
	g.c.polls.Add(1)
	n := rx.Receive(g.packets)
	bytes := 0
	for i := range g.packets[:n] {
		bytes += len(g.packets[i].Frame())
		g.iov = g.packets[i].Segments(g.iov[:0])
		believe(g.iov[0], g.packets[i].Frame())
		if g.port.Send(g.iov) != nil {
			g.c.lost.Add(1)
		}
	}
	rx.Recycle()
	g.dim.polled(n, bytes)
	if !g.cfg.Orphan {
		// The poll of the receive queue takes buffers back as well.
		g.pair.TX.Reclaim()
		g.restart()
	}
	if n == budget {
		return
	}
	if rx.Arm() {
		rx.Disarm()
		return
	}
	g.rxPoll = false
	g.dim.completed(g.c.rxInterrupts.Load())
}

// reclaim is what follows a notification of the transmit queue.
func (g *Guest) reclaim() {
	g.txPoll = false
	g.pair.TX.Reclaim()
	g.restart()
	if !g.cfg.Orphan && g.pair.TX.ArmNext() {
		g.pair.TX.Disarm()
		g.txPoll = true
	}
}

// restart lets the stack transmit again if there is room.
func (g *Guest) restart() {
	if g.stopped && g.pair.TX.Free() >= stopSlots {
		g.stopped = false
	}
}

// transmit gives the device what the stack has sent, one budget of it.
func (g *Guest) transmit() {
	tx := g.pair.TX
	if !g.cfg.Orphan {
		tx.Disarm()
	}
	tx.Reclaim()
	for range budget {
		b, err := tx.Reserve()
		if err != nil {
			break
		}
		g.in[0] = b
		size, err := g.port.Recv(g.in[:])
		if errors.Is(err, port.ErrWouldBlock) {
			g.readable = false
			break
		}
		if err != nil {
			g.c.lost.Add(1)
			continue
		}
		if tx.Commit(size) != nil {
			g.c.lost.Add(1)
		}
	}
	tx.Flush()
	full := tx.Free() < stopSlots
	if full && !g.stopped {
		g.stopped = true
		g.c.stops.Add(1)
	}
	// With NAPI a driver asks after each transmission to be told when most of it
	// has been done with, without it only when it can go on no further.
	if full || !g.cfg.Orphan {
		if tx.ArmFull() {
			tx.Disarm()
			tx.Reclaim()
			g.restart()
			if g.stopped {
				g.txPoll = true
			}
		}
	}
}
