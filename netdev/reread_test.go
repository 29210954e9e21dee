package netdev_test

import (
	"testing"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/virtio"
)

// TestBuffersChange: what the worker has popped and not used it pops once more when
// its batch is full. A driver that has changed it meanwhile harms itself at most.
func TestBuffersChange(t *testing.T) {
	const size, buffer = 64, 700
	for name, c := range map[string]struct {
		// frame is the size of the frame that meets the change.
		frame  int
		change func(r *scripted.Ring, head uint16)
		// first is what the first buffer comes back with, for a ring that lives on.
		first  uint32
		broken bool
	}{
		"shrinks": {1500, func(r *scripted.Ring, head uint16) {
			r.SetDesc(int(head), scripted.Desc{Addr: scripted.RingBase + 0x80000, Len: virtio.NetHeaderLen, Flags: virtio.DescFWrite})
		}, virtio.NetHeaderLen, false},
		"becomes readable": {1300, func(r *scripted.Ring, head uint16) {
			r.SetDesc(int(head), scripted.Desc{Addr: scripted.RingBase + 0x80000, Len: buffer})
		}, 0, false},
		"has no descriptor": {1300, func(r *scripted.Ring, _ uint16) {
			r.Next -= 3
			r.Put(size)
			r.Next += 2
		}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newFakePort(t, 1)
			r := &rig{t: t, port: p, dev: newDevice(t, netdev.Config{}, p)}
			conn, ended := connect(t, r.dev)
			defer func() {
				_ = conn.Close()
				ended()
				r.must(r.dev.Close())
			}()
			g := scripted.NewGuest(t, conn, scripted.NewMemory(t))
			g.Size = size
			g.Hello(0)
			ring := g.Ring(0)
			var heads []uint16
			at := uint64(scripted.RingBase + 0x80000)
			post := func(n int) {
				t.Helper()
				for range n {
					h, err := ring.Add(scripted.Seg{Addr: at, Len: buffer, Write: true})
					g.Must(err)
					heads = append(heads, h)
					at += 1024
				}
				ring.Publish()
			}
			used := func(n int) (written uint32) {
				t.Helper()
				for i := range n {
					r.until("buffers are used", func() bool { return ring.UsedIdx() != ring.Seen })
					_, l, err := ring.Wait()
					g.Must(err)
					if i == 0 {
						written = l
					}
					heads = heads[1:]
				}
				return written
			}
			post(size)
			g.Start(0)
			// Frames of three buffers each: the batch, which has 128, is full with one
			// of them left, and two behind it.
			frame := func(n int) { p.queues[0].inject(testFrame(1, n)) }
			for i := range 42 {
				frame(1500)
				used(3)
				if i == 20 {
					post(size - 1)
				}
			}
			post(2)
			c.change(ring, heads[0])
			frame(c.frame)
			if c.broken {
				r.until("the ring is broken", func() bool { return r.queue(0).Broken != "" })
				return
			}
			r.until("the frame is taken", func() bool {
				q := p.queues[0]
				q.mu.Lock()
				defer q.mu.Unlock()
				return len(q.in) == 0
			})
			post(2)
			g.Must(ring.Notify())
			if l := used(1); l != c.first {
				t.Errorf("the buffer that has changed comes back with %d bytes, want %d", l, c.first)
			}
		})
	}
}
