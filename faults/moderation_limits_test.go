package faults

import (
	"bytes"
	"testing"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/virtio"
)

const (
	seconds = 1_000_000 // in microseconds
	long    = 10 * seconds
)

// vqCommand is the data of VQ_SET.
func vqCommand(vq, reserved uint16, packets, usecs uint32) []byte {
	return append([]byte{byte(vq), byte(vq >> 8), byte(reserved), byte(reserved >> 8)}, le32(packets, usecs)...)
}

// vqGet asks for the limits of a virtqueue on control ring q.
func vqGet(t *testing.T, g *scripted.Guest, q int, vq, reserved uint16) (packets, usecs uint32, ack uint8) {
	t.Helper()
	req := append([]byte{virtio.CtrlNotfCoal, virtio.CtrlNotfCoalVQGet}, vqCommand(vq, reserved, 0, 0)[:4]...)
	copy(g.Mem.At(scratch, 64), bytes.Repeat([]byte{0xEE}, 64))
	copy(g.Mem.At(scratch, 6), req)
	_, err := g.Ring(q).Add(
		scripted.Seg{Addr: scratch, Len: 2}, scripted.Seg{Addr: scratch + 2, Len: 4},
		scripted.Seg{Addr: scratch + 32, Len: 8, Write: true}, scripted.Seg{Addr: scratch + 40, Len: 1, Write: true})
	g.Must(err)
	kick(g, q)
	_, n, err := g.Ring(q).Wait()
	g.Must(err)
	b := g.Mem.At(scratch, 64)
	ack = b[40]
	if want := map[bool]uint32{true: 9, false: 1}[ack == virtio.CtrlOK]; n != want {
		t.Errorf("VQ_GET %d: %d bytes written, want %d", vq, n, want)
	}
	if !bytes.Equal(b[:6], req) || !bytes.Equal(b[6:32], bytes.Repeat([]byte{0xEE}, 26)) || b[41] != 0xEE {
		t.Errorf("VQ_GET %d: written outside of the answer: % x", vq, b)
	}
	le := func(b []byte) uint32 {
		return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
	}
	return le(b[32:]), le(b[36:]), ack
}

// has expects the limits that the driver set for a data ring.
func (m *moderated) has(vq uint16, packets, usecs uint32, when string) {
	m.t.Helper()
	if p, u, ack := vqGet(m.t, m.Guest, 2, vq, 0); ack != virtio.CtrlOK || p != packets || u != usecs {
		m.t.Errorf("queue %d: %s: %d packets, %d us, answer %d; want %d, %d", vq, when, p, u, ack, packets, usecs)
	}
}

// set sets the limits of one ring.
func (m *moderated) set(vq uint16, packets, usecs uint32) {
	m.t.Helper()
	expectAck(m.t, m.Guest, 2, virtio.CtrlOK, virtio.CtrlNotfCoal, virtio.CtrlNotfCoalVQSet, vqCommand(vq, 0, packets, usecs)...)
}

// flap disables a ring and enables it again.
func (m *moderated) flap(q int) {
	m.t.Helper()
	m.Must(m.SetVringEnable(q, false))
	m.Must(m.SetVringEnable(q, true))
}

// everyPacket expects a call for each frame.
func (m *moderated) everyPacket(q int) {
	m.t.Helper()
	m.silence()
	for range 3 {
		m.move(q, 1)
		m.called(q, "every frame")
	}
	m.recycle(q)
	m.silence()
}

// M04: parameters take effect at once, the last one wins, and they end with the
// driver that set them.
func TestM04Life(t *testing.T) {
	t.Parallel()
	m := newModerated(t, 0)
	for q := range 2 {
		for _, now := range []struct{ packets, usecs uint32 }{{8, long}, {64, 0}, {0, long}, {10, long}} {
			m.setAll(q, 15, long)
			m.silence()
			before := m.api.queue(t, q).CallReasons
			m.move(q, 10)
			m.quiet(q, "10 of 15 frames")
			m.setAll(q, now.packets, now.usecs)
			m.called(q, "a smaller limit")
			if why := m.reasons(q, before); len(why) != 1 || why["limit_shrunk"] != 1 {
				t.Errorf("ring %d, %+v: calls %v", q, now, why)
			}
			m.recycle(q)
		}
		// A shorter time counts from the first frame, not from the change.
		m.setAll(q, 64, long)
		m.silence()
		m.move(q, 3)
		m.quiet(q, "3 of 64 frames")
		m.setAll(q, 64, 1)
		m.called(q, "a shorter time")
		m.recycle(q)
	}

	for q := range 2 {
		m.setAll(q, 0, 0)
	}
	for q := range uint16(2) {
		m.setAll(int(q), 9, 900)
		m.has(q, 9, 900, "all were set")
		m.set(q, 5, 500)
		m.has(q, 5, 500, "one was set")
		m.has(1-q, 9*uint32(q), 900*uint32(q), "the other was set")
		m.setAll(int(q), 9, 900)
		m.has(q, 9, 900, "all were set again")
		m.set(q, 5, 500)
		m.flap(int(q))
		m.has(q, 9, 900, "disabled and enabled")
	}
	m.end()

	// A new driver finds nothing of it: after a reconnection, and after a restart.
	m.connect(0)
	for q := range uint16(2) {
		m.has(q, 0, 0, "connected again")
		m.everyPacket(int(q))
		m.set(q, 5, long)
		m.flap(int(q))
		m.has(q, 0, 0, "disabled and enabled, and all were never set")
		m.everyPacket(int(q))
	}
	for q := range 2 {
		m.setAll(q, 9, long)
		m.set(uint16(q), 64, long)
	}
	for q := range 3 {
		_, err := m.GetVringBase(q)
		m.Must(err)
	}
	m.Must(m.SetFeatures(m.Features))
	m.begin()
	for q := range uint16(2) {
		m.has(q, 0, 0, "stopped and started")
		m.everyPacket(int(q))
	}
	m.end()
}

// M07: a timer that finds calls suppressed decides like any other.
func TestM07Suppressed(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]virtio.Features{"flags": 0, "event index": virtio.FeatureEventIdx} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newModerated(t, more)
			for q := range 2 {
				r := m.Ring(q)
				// The first decision of a ring is always to call.
				m.move(q, 1)
				m.called(q, "the first frame")
				m.recycle(q)
				for round := range 3 {
					r.SetAvailFlags(virtio.AvailFNoInterrupt)
					r.SetUsedEvent(r.Seen + 0x7000)
					m.setAll(q, 64, 200_000)
					m.silence()
					before := m.api.queue(t, q)
					m.move(q, 3)
					scripted.Until(t, "the timer has fired", func() bool { return m.reasons(q, before.CallReasons)["timeout"] > 0 })
					scripted.Until(t, "all timers have fired", func() bool {
						return m.api.queue(t, q).CallsSuppressed-before.CallsSuppressed == m.reasons(q, before.CallReasons)["timeout"]
					})
					// The driver wants calls again, looks at the ring and finds them.
					if round%2 == 0 {
						r.SetUsedEvent(r.UsedIdx() - 1)
						r.SetAvailFlags(0)
						m.recycle(q)
						m.quiet(q, "calls are suppressed")
					} else {
						m.quiet(q, "calls are suppressed")
						r.SetAvailFlags(0)
						m.recycle(q)
					}
					if round < 2 {
						r.SetUsedEvent(r.Seen)
					} // else the driver asks for one that was never announced
					m.move(q, 1)
					m.called(q, "one more frame")
					m.recycle(q)
				}
			}
			m.end()
		})
	}
}

// M07: which queues the commands take, and what they leave alone.
func TestM07Commands(t *testing.T) {
	t.Parallel()
	const ok, no = virtio.CtrlOK, virtio.CtrlErr
	c := scripted.Serve(t, "echo", "--queue-pairs=4")
	const ctl, coal = 8, virtio.CtrlNotfCoal
	g := c.Dial(t)
	g.Hello(virtio.FeatureMQ | virtio.FeatureNotfCoal | virtio.FeatureVQNotfCoal)
	watch(g, 0, 1, 2, 3, 5, ctl)
	expectAck(t, g, ctl, ok, virtio.CtrlMQ, virtio.CtrlMQVQPairsSet, 2, 0)
	g.Must(g.SetVringEnable(3, false))
	expectAck(t, g, ctl, ok, coal, virtio.CtrlNotfCoalVQSet, vqCommand(0, 0, 7, 70)...)
	expectAck(t, g, ctl, ok, coal, virtio.CtrlNotfCoalVQSet, vqCommand(1, 0xFFFF, 8, 80)...)
	expectAck(t, g, ctl, ok, coal, virtio.CtrlNotfCoalVQSet, vqCommand(2, 0, 9, 90)...)
	for vq, want := range map[uint16]uint32{0: 7, 1: 8, 2: 9} {
		for _, reserved := range []uint16{0, 0xFFFF} {
			if p, u, ack := vqGet(t, g, ctl, vq, reserved); p != want || u != 10*want || ack != ok {
				t.Errorf("queue %d: %d packets, %d us, answer %d", vq, p, u, ack)
			}
		}
	}
	// The control ring, none, a disabled one, and one that is not started.
	for _, vq := range []uint16{8, 9, 0xFFFF, 0x0100, 3, 4, 7} {
		expectAck(t, g, ctl, no, coal, virtio.CtrlNotfCoalVQSet, vqCommand(vq, 0, 7, 70)...)
		if _, _, ack := vqGet(t, g, ctl, vq, 0); ack != no {
			t.Errorf("queue %d: answer %d", vq, ack)
		}
	}
	for _, data := range [][]byte{nil, {0}, {0, 0, 0}, vqCommand(0, 0, 1, 1)[:11], append(vqCommand(0, 0, 1, 1), 0)} {
		expectAck(t, g, ctl, no, coal, virtio.CtrlNotfCoalVQSet, data...)
		expectAck(t, g, ctl, no, coal, virtio.CtrlNotfCoalRXSet, data...)
	}
	expectAck(t, g, ctl, no, coal, 4)
	c.RoundTrip(g)
	c.Alive(g)

	g = c.Dial(t)
	g.Hello(virtio.FeatureNotfCoal)
	watch(g, 0, 1, 2)
	expectAck(t, g, 2, ok, coal, virtio.CtrlNotfCoalRXSet, le32(1, 1)...)
	expectAck(t, g, 2, ok, coal, virtio.CtrlNotfCoalTXSet, le32(1, 1)...)
	expectAck(t, g, 2, no, coal, virtio.CtrlNotfCoalVQSet, vqCommand(0, 0, 7, 70)...)
	if _, _, ack := vqGet(t, g, 2, 0, 0); ack != no {
		t.Errorf("VQ_GET without its feature: answer %d", ack)
	}
	c.Alive(g)

	g = c.Dial(t)
	g.Hello(virtio.FeatureVQNotfCoal)
	watch(g, 0, 1, 2)
	expectAck(t, g, 2, no, coal, virtio.CtrlNotfCoalRXSet, le32(1, 1)...)
	expectAck(t, g, 2, no, coal, virtio.CtrlNotfCoalTXSet, le32(1, 1)...)
	expectAck(t, g, 2, ok, coal, virtio.CtrlNotfCoalVQSet, vqCommand(0, 0, 7, 70)...)
	c.Alive(g)
}
