package faults

import (
	"slices"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/virtio"
)

// moderated is a guest on a TAP whose driver sets notification limits. Its rings
// are receive 0, transmit 1 and control 2.
type moderated struct {
	*scripted.Guest
	t    *testing.T
	c    *scripted.Child
	api  statusAPI
	host *scripted.Host
}

func newModerated(t *testing.T, more virtio.Features, args ...string) *moderated {
	t.Helper()
	h := scripted.NewHost(t, 1)
	c, api := serveTAPWithAPI(t, h, args...)
	m := &moderated{t: t, c: c, api: api, host: h}
	m.connect(more)
	return m
}

// connect begins a session; the one before has ended.
func (m *moderated) connect(more virtio.Features) {
	m.t.Helper()
	m.Guest = m.c.Dial(m.t)
	m.Hello(virtio.FeatureNotfCoal | virtio.FeatureVQNotfCoal | more)
	m.begin()
}

// begin starts cleared rings, with no signal pending and all buffers posted.
func (m *moderated) begin() {
	m.t.Helper()
	for q := range 3 {
		m.Ring(q).Reset(0)
		watch(m.Guest, q)
	}
	m.Post(0, m.Ring(0).Size)
	m.silence()
}

// end ends the session alive. The frames that were sent lie in the packet socket.
func (m *moderated) end() {
	m.t.Helper()
	for {
		if _, err := m.host.ReceiveWithin(time.Millisecond); err != nil {
			break
		}
	}
	m.c.Alive(m.Guest)
}

// silence takes the signals of the data rings.
func (m *moderated) silence() {
	for q := range 2 {
		barrier(m.Guest, q)
		signals(m.Guest, m.Ring(q).Call)
	}
}

// setAll sets the limits of one direction.
func (m *moderated) setAll(q int, packets, usecs uint32) {
	m.t.Helper()
	cmd := uint8(virtio.CtrlNotfCoalRXSet)
	if q == 1 {
		cmd = virtio.CtrlNotfCoalTXSet
	}
	expectAck(m.t, m.Guest, 2, virtio.CtrlOK, virtio.CtrlNotfCoal, cmd, le32(packets, usecs)...)
}

// move makes n frames go through a ring, one by one, and waits until all of them
// are used; nothing is said of calls.
func (m *moderated) move(q, n int) {
	m.t.Helper()
	r := m.Ring(q)
	for range n {
		want := r.UsedIdx() + 1
		if q == 1 {
			m.Must(m.Queue(1, m.Frame(60)))
			m.Must(r.Notify())
		} else {
			m.Must(m.host.Send(m.Frame(60)))
		}
		m.Must(spin("a frame is used", func() bool { return r.UsedIdx() == want }))
	}
}

// recycle reaps what is used and posts the buffers again.
func (m *moderated) recycle(q int) {
	m.t.Helper()
	for n := 0; ; n++ {
		_, _, ok, err := m.Ring(q).Reap()
		m.Must(err)
		if !ok {
			if q == 0 && n > 0 {
				m.Post(0, n)
			}
			return
		}
	}
}

// called waits for a call.
func (m *moderated) called(q int, when string) {
	m.t.Helper()
	if err := m.Ring(q).WaitCall(scripted.Hang); err != nil {
		m.t.Fatalf("ring %d: %s: no call: %v", q, when, err)
	}
}

// quiet expects no call for what was done so far.
func (m *moderated) quiet(q int, when string) {
	m.t.Helper()
	barrier(m.Guest, q)
	if n := signals(m.Guest, m.Ring(q).Call); n != 0 {
		m.t.Errorf("ring %d: %s: %d calls", q, when, n)
	}
}

// announced moves n frames, the last one after a pause, and waits for the call that
// announces it.
func (m *moderated) announced(q, n int, pause time.Duration) {
	m.t.Helper()
	m.move(q, n-1)
	time.Sleep(pause)
	signals(m.Guest, m.Ring(q).Call)
	m.move(q, 1)
	m.called(q, "frames and then silence")
}

// reasons returns why the ring called since before.
func (m *moderated) reasons(q int, before map[string]uint64) map[string]uint64 {
	m.t.Helper()
	now := m.api.queue(m.t, q).CallReasons
	for why, n := range before {
		if now[why] -= n; now[why] == 0 {
			delete(now, why)
		}
	}
	return now
}

// M01: what is held back is announced, by time if not by number, and limits of
// zero hold nothing back.
func TestM01Timer(t *testing.T) {
	t.Parallel()
	m := newModerated(t, 0)
	for q := range 2 {
		for _, row := range []struct {
			packets, usecs uint32
			frames         int
			why            []string
		}{
			{64, 50_000, 3, []string{"timeout"}},
			{64, 50_000, 1, []string{"timeout"}},
			{16, 0, 1, []string{"every_packet"}},
			{0, 100_000, 1, []string{"every_packet"}},
			{1, 1_000_000, 1, []string{"every_packet", "packets"}},
			{4, 20_000_000, 8, []string{"packets"}},
			{0, 0, 5, []string{"every_packet"}},
		} {
			m.setAll(q, row.packets, row.usecs)
			m.silence()
			before := m.api.queue(t, q)
			m.announced(q, row.frames, 0)
			why := m.reasons(q, before.CallReasons)
			for w := range why {
				if !slices.Contains(row.why, w) {
					t.Errorf("ring %d, %+v: calls %v", q, row, why)
				}
			}
			after := m.api.queue(t, q)
			if total := after.Calls - before.Calls; after.CallsSuppressed != before.CallsSuppressed || total == 0 || total > uint64(row.frames) {
				t.Errorf("ring %d, %+v: %d calls, %v", q, row, total, why)
			}
			m.recycle(q)
		}

		// Nearly enough, a pause, and the last one.
		m.setAll(q, 64, 50_000)
		m.silence()
		before := m.api.queue(t, q).CallReasons
		m.announced(q, 64, 10*time.Millisecond)
		if why := m.reasons(q, before); why["timeout"]+why["packets"] == 0 || why["every_packet"] != 0 {
			t.Errorf("ring %d: calls %v for 64 frames", q, why)
		}
		m.recycle(q)

		// A trickle does not put the timer off.
		before = m.api.queue(t, q).CallReasons
		scripted.Until(t, "a trickle is announced", func() bool {
			m.move(q, 1)
			time.Sleep(10 * time.Millisecond)
			m.recycle(q)
			return m.reasons(q, before)["timeout"] >= 2
		})
		if why := m.reasons(q, before); len(why) != 1 {
			t.Errorf("ring %d: a trickle: calls %v", q, why)
		}
	}
	m.end()
}
