package afpacket

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vhostnet/vhostnet/port"
)

// A frame over a veth pair and into the far end's buffers, sent one by one and in
// bursts; the kernel's part, both sockets and the pair, is most of it.
func BenchmarkVeth(b *testing.B) {
	for _, size := range []int{60, 1514} {
		for _, burst := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("%dB/%d", size, burst), func(b *testing.B) {
				namespace(b)
				near, far := open(b, "near", 1, 0), open(b, "far", 1, 0)
				q, r := near.Queue(0).(port.BatchQueue), far.Queue(0)
				frames, errs := make([][][]byte, burst), make([]error, burst)
				for i := range frames {
					frames[i] = withHeader(frame(size, uint32(i)))
				}
				room := [][]byte{make([]byte, 2048)}
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for n := 0; n < b.N; n += burst {
					q.SendBatch(frames, errs)
					for got := 0; got < burst; {
						switch _, err := r.Recv(room); {
						case err == nil:
							got++
						case !errors.Is(err, port.ErrWouldBlock):
							b.Fatal(err)
						}
					}
				}
			})
		}
	}
}
