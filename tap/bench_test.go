package tap

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

// The whole path to the kernel and back allocates nothing.
func TestNoAllocationsOnATAP(t *testing.T) {
	namespace(t)
	p := open(t, "vn0", Options{CreateIfMissing: true})
	configure(t, p, virtio.NetHeaderLen, p.Offloads())
	q, h := polled(p, 0), packet(t, "vn0", etherType)
	f := frame(1514, 0)
	one := [][]byte{withHeader(virtio.NetHeaderLen, f)}
	two := [][]byte{one[0][:12], one[0][12:]}
	in := split(make([]byte, 4096), 512)
	bad := [][]byte{one[0][:5]}
	n := testing.AllocsPerRun(100, func() {
		h.send(f)
		if _, err := q.Recv(in); err != nil {
			t.Fatal(err)
		}
		if _, err := q.Recv(in); !errors.Is(err, port.ErrWouldBlock) {
			t.Fatal(err)
		}
		if err := errors.Join(q.Send(one), q.Send(two)); err != nil {
			t.Fatal(err)
		}
		if err := q.Send(bad); !errors.Is(err, port.ErrDropped) {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSend(b *testing.B) {
	for _, size := range []int{60, 1514} {
		for _, parts := range []int{1, 2, 8} {
			b.Run(fmt.Sprintf("%dB/%d", size, parts), func(b *testing.B) {
				namespace(b)
				p := open(b, "vn0", Options{CreateIfMissing: true})
				configure(b, p, virtio.NetHeaderLen, p.Offloads())
				q, whole := polled(p, 0), withHeader(virtio.NetHeaderLen, frame(size, 0))
				bufs := split(whole, (len(whole)+parts-1)/parts)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if err := q.Send(bufs); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// What a buffer too small for the largest frame costs: a second segment.
func BenchmarkRecv(b *testing.B) {
	for _, room := range []int{1530, frameRoom} {
		b.Run(fmt.Sprintf("%dB", room), func(b *testing.B) {
			namespace(b)
			p := open(b, "vn0", Options{CreateIfMissing: true})
			configure(b, p, virtio.NetHeaderLen, p.Offloads())
			q, h, f := polled(p, 0), packet(b, "vn0", 0xFFFF), frame(60, 0)
			bufs := [][]byte{make([]byte, room)}
			b.ReportAllocs()
			left := 0
			for b.Loop() {
				if left == 0 {
					b.StopTimer()
					for left = 0; left < 400; left++ {
						h.send(f)
					}
					b.StartTimer()
				}
				if _, err := q.Recv(bufs); err != nil {
					b.Fatal(err)
				}
				left--
			}
		})
	}
}
