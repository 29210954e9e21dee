package vring_test

import (
	"fmt"
	"testing"

	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

// BenchmarkBurst is the ring's share of a packet: pop, complete, publish, decide.
// The driver's is a store of the index, in the same thread.
func BenchmarkBurst(b *testing.B) {
	const n, tables = 256, 0x200000
	for _, shape := range []struct {
		name string
		put  func(d *model, i int, at uint64)
	}{
		{"plain", func(d *model, i int, at uint64) { d.put(i, at, 1514, 0, 0) }},
		{"writable", func(d *model, i int, at uint64) { d.put(i, at, 1536, write, 0) }},
		{"chain of 2", func(d *model, i int, at uint64) {
			d.put(i, at, 12, next, uint16(i+n/2))
			d.put(i+n/2, at+12, 1502, 0, 0)
		}},
		{"table of 2", func(d *model, i int, at uint64) {
			table := uint64(tables + 64*i)
			d.table(table, desc{at, 12, next, 1}, desc{at + 12, 1502, 0, 0})
			d.put(i, table, 32, indirect, 0)
		}},
	} {
		for _, burst := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d", shape.name, burst), func(b *testing.B) {
				d := newModel(b, memfd(b), n, split|virtio.FeatureEventIdx|virtio.FeatureIndirectDesc, 0)
				for i := range n {
					d.heads[i] = uint16(i) % (n / 2)
				}
				for i := range n / 2 {
					shape.put(d, i, bufBase+2048*uint64(i))
				}
				q, batch := d.activate(), vring.NewBatch(burst, 4*burst)
				b.ReportAllocs()
				for left := b.N; left > 0; left -= burst {
					d.idx += uint16(burst)
					d.avail.Store16(2, d.idx)
					batch.Reset()
					if got, err := q.Pop(batch, burst); got != burst {
						b.Fatal(got, err)
					}
					finish(q, batch)
					q.NeedSignal()
				}
			})
		}
	}
}

// BenchmarkPlain is the same by the short way, for plain chains.
func BenchmarkPlain(b *testing.B) {
	const n = 256
	for _, burst := range []int{1, 64} {
		b.Run(fmt.Sprint(burst), func(b *testing.B) {
			d := newModel(b, memfd(b), n, split|virtio.FeatureEventIdx, 0)
			for i := range n {
				d.heads[i] = uint16(i)
				d.put(i, bufBase+2048*uint64(i), 1514, 0, 0)
			}
			q, ids, bufs := d.activate(), make([]uint16, burst), make([][]byte, burst)
			b.ReportAllocs()
			for left := b.N; left > 0; left -= burst {
				d.idx += uint16(burst)
				d.avail.Store16(2, d.idx)
				if got := q.PopPlain(ids, bufs, false); got != burst {
					b.Fatal(got)
				}
				q.CompletePlain(ids, nil)
				q.Publish()
				q.NeedSignal()
			}
		})
	}
}
