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

// BenchmarkPackedBurst is BenchmarkBurst of a packed ring. The driver's share is a store
// for each descriptor: all are written anew.
func BenchmarkPackedBurst(b *testing.B) {
	const n, tables = 256, 0x200000
	for _, shape := range []struct {
		name  string
		chain func(i int) []desc
	}{
		{"plain", func(i int) []desc { return []desc{{bufBase + 2048*uint64(i), 1514, 0, 0}} }},
		{"writable", func(i int) []desc { return []desc{{bufBase + 2048*uint64(i), 1536, write, 0}} }},
		{"chain of 2", func(i int) []desc {
			at := bufBase + 2048*uint64(i)
			return []desc{{at, 12, next, 0}, {at + 12, 1502, 0, 0}}
		}},
		{"table of 2", func(i int) []desc { return []desc{{tables + 64*uint64(i), 32, indirect, 0}} }},
	} {
		for _, burst := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d", shape.name, burst), func(b *testing.B) {
				d := newPackedModel(b, memfd(b), n, virtio.FeatureEventIdx|virtio.FeatureIndirectDesc, 0)
				ring := make([]desc, 0, n)
				for i := 0; len(ring) < n; i++ {
					at := bufBase + 2048*uint64(i)
					d.table(tables+64*uint64(i), desc{at, 12, 0, 0}, desc{at + 12, 1502, 0, 0})
					ring = append(ring, shape.chain(i)...)
				}
				per := len(shape.chain(0))
				q, batch := d.activate(), vring.NewBatch(burst, 4*burst)
				b.ReportAllocs()
				for left := b.N; left > 0; left -= burst {
					for range burst * per {
						d.rewrite(ring)
					}
					batch.Reset()
					for got := 0; got < burst; {
						k, err := q.Pop(batch, burst-got)
						if got += k; k == 0 {
							b.Fatal(got, err)
						}
					}
					finish(q, batch)
					q.NeedSignal()
				}
			})
		}
	}
}

// rewrite makes the next descriptor available as it is in ring.
func (d *packedModel) rewrite(ring []desc) {
	i := d.next % d.n
	c := &ring[i]
	d.words[2*i], d.words[2*i+1] = c.addr, uint64(c.n)|uint64(i)<<32|uint64(c.flags)<<48|d.avail(d.next)
	if d.next++; d.next == 2*d.n {
		d.next = 0
	}
}

// BenchmarkPackedPlain is BenchmarkPlain of a packed ring.
func BenchmarkPackedPlain(b *testing.B) {
	const n = 256
	for _, burst := range []int{1, 64} {
		b.Run(fmt.Sprint(burst), func(b *testing.B) {
			d := newPackedModel(b, memfd(b), n, virtio.FeatureEventIdx, 0)
			ring := make([]desc, n)
			for i := range ring {
				ring[i] = desc{bufBase + 2048*uint64(i), 1514, 0, 0}
			}
			q, ids, bufs := d.activate(), make([]uint16, burst), make([][]byte, burst)
			b.ReportAllocs()
			for left := b.N; left > 0; left -= burst {
				for range burst {
					d.rewrite(ring)
				}
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
