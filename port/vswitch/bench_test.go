package vswitch

import (
	"fmt"
	"testing"
)

// BenchmarkHandOver is what the switch costs for a frame of a burst: finding out
// where it goes and both copies, on one processor.
func BenchmarkHandOver(b *testing.B) {
	for _, size := range []int{60, 1514} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			var set Set
			var ports [2]*Port
			for i := range ports {
				p, err := set.Open("sw", 1)
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = p.Close() }()
				if err := p.SetActive(0, true); err != nil {
					b.Fatal(err)
				}
				p.queues[0].Awake()
				ports[i] = p
			}
			from, to := ports[0].queues[0], ports[1].queues[0]
			frames, bufs, lens := make([][]byte, 64), make([][]byte, 64), make([]uint32, 64)
			for i := range frames {
				frames[i] = append(frame(0xb, 0xa, ""), make([]byte, size-60)...)
				bufs[i] = make([]byte, 2048)
			}
			to.SendBurst([][]byte{frame(0xa, 0xb, "")})
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for n := 0; n < b.N; n += len(frames) {
				from.SendBurst(frames)
				if got, _ := to.RecvBurst(bufs, 12, lens); got != len(frames) {
					b.Fatal(got)
				}
			}
		})
	}
}
