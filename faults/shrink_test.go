package faults

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/internal/scripted"
)

// A front-end can cut its memory file short under the device. That breaks the
// rings that touch what is gone, and nothing else.
func TestMemoryShrinks(t *testing.T) {
	for name, left := range map[string]int64{"buffers": scripted.BufferBase, "everything": 0} {
		for port, ring := range map[string]int{"echo": 1, "null": 1, "source": 0} {
			t.Run(name+"/"+port, func(t *testing.T) {
				c := scripted.Serve(t, port)
				g := c.Dial(t)
				g.Hello(0)
				g.Start(0, 1)
				g.Must(g.SetVringErr(ring, g.Ring(ring).Err))
				// Whatever is published lies in what stays, or is not touched again.
				if ring == 1 {
					g.Must(g.Queue(1, g.Frame(60)))
				} else {
					g.Must(g.PostQuietly(0, 8))
				}
				g.Must(unix.Ftruncate(g.Mem.FD, left))
				g.Must(g.Ring(ring).Notify())
				scripted.Until(t, "the ring is broken", func() bool {
					n, err := scripted.Drain(g.Ring(ring).Err)
					return err == nil && n > 0
				})
				c.Await("virtqueue is broken", 1)
				if n := c.Lines("virtqueue is broken"); n < 1 || n > 2 {
					t.Errorf("%d lines about it", n)
				}
				// The session goes on, and ends in order.
				if _, err := g.GetVringBase(ring); err != nil {
					t.Error(err)
				}
				c.Alive(g)
			})
		}
	}
}
