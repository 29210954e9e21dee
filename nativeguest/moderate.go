package nativeguest

import (
	"sync"
	"time"

	"github.com/vhostnet/vhostnet/coalesce"
)

// moderator is the guest's own moderation of its receive queue, as Linux does it
// after ethtool -C adaptive-rx on: net-dim with the EQE profiles, fed at the end of
// each poll, and commands over the control queue from another context.
type moderator struct {
	engine coalesce.Engine
	start  time.Time
	// on and limits are shared with the goroutine that sends commands.
	mu      sync.Mutex
	on      bool
	limits  coalesce.Limits
	sent    coalesce.Limits
	changed chan struct{}

	packets       uint32
	bytes, before uint64
	active        bool
}

// everyPacket is what the driver assumes of a device that it has told nothing.
var everyPacket = coalesce.Limits{}

// SetAdaptive switches the guest's own moderation of the receive queue. Off sets
// the device's limits of all queues to every packet.
func (g *Guest) SetAdaptive(on bool) error {
	m := &g.dim
	m.mu.Lock()
	defer m.mu.Unlock()
	m.on, m.limits = on, everyPacket
	if on {
		return nil
	}
	m.sent = everyPacket
	if err := g.d.SetTXCoalesce(0, 0); err != nil {
		return err
	}
	return g.d.SetRXCoalesce(0, 0)
}

// moderate starts the goroutine that sends commands and returns how to end it.
func (g *Guest) moderate() (stop func()) {
	m := &g.dim
	m.engine = coalesce.EngineSpec{Kind: coalesce.EngineNetDim, Direction: coalesce.RX}.New()
	m.start, m.changed = time.Now(), make(chan struct{}, 1)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-m.changed:
				g.command()
			}
		}
	}()
	return func() { close(quit); <-done }
}

// command tells the device the limits that were decided last.
func (g *Guest) command() {
	m := &g.dim
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.on || m.limits == m.sent {
		return
	}
	if err := g.d.SetVQCoalesce(0, m.limits.Usecs, m.limits.Packets); err != nil {
		g.c.commandErrors.Add(1)
		return
	}
	m.sent = m.limits
	g.c.commands.Add(1)
}

// polled adds what one poll has received.
func (m *moderator) polled(packets, bytes int) {
	m.packets += uint32(packets)
	m.bytes += uint64(bytes)
}

// completed is the end of polling.
func (m *moderator) completed(interrupts uint64) {
	if m.packets == 0 {
		return
	}
	o := coalesce.Observation{
		Now: int64(time.Since(m.start)), Packets: m.packets, Bytes: m.bytes, Notified: uint32(interrupts - m.before),
	}
	m.packets, m.bytes, m.before = 0, 0, interrupts
	if !m.mu.TryLock() {
		return // a command is under way
	}
	defer m.mu.Unlock()
	if !m.on {
		m.active = false
		return
	}
	if !m.active {
		m.engine.Reset()
		m.active = true
	}
	m.limits = m.engine.Observe(&o).Limits
	if m.limits == m.sent {
		return
	}
	select {
	case m.changed <- struct{}{}:
	default:
	}
}
