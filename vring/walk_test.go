package vring_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

const (
	next     = virtio.DescFNext
	write    = virtio.DescFWrite
	indirect = virtio.DescFIndirect
)

// desc is one descriptor of a test's table.
type desc struct {
	addr  uint64
	n     uint32
	flags uint16
	next  uint16
}

// TestFaults covers reference case V01: whatever a chain looks like, it is
// handed out once, as faulty, and the chains after it work.
func TestFaults(t *testing.T) {
	const n = 256
	tests := []struct {
		name  string
		chain []desc // from descriptor 0 on
		want  vring.Fault
	}{
		{"loop on itself", []desc{{bufBase, 0, next, 0}}, vring.FaultLength},
		{"loop of two", []desc{{bufBase, 60, next, 1}, {bufBase, 60, next, 0}}, vring.FaultLength},
		{"next is the size", []desc{{bufBase, 60, next, n}}, vring.FaultNext},
		{"next is 0xffff", []desc{{bufBase, 60, next, 0xffff}}, vring.FaultNext},
		{"unmapped", []desc{{memSize, 60, 0, 0}}, vring.FaultAddress},
		{"ends outside", []desc{{memSize - 8, 9, 0, 0}}, vring.FaultAddress},
		{"wraps", []desc{{0xfffffffffffffff8, 64, 0, 0}}, vring.FaultAddress},
		{"4 GiB", []desc{{bufBase, 0xffffffff, write, 0}}, vring.FaultAddress},
		{"readable behind writable", []desc{{bufBase, 8, next | write, 1}, {bufBase, 8, 0, 0}}, vring.FaultOrder},
		{"indirect without the feature", []desc{{bufBase, 16, indirect, 0}}, vring.FaultIndirect},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newModel(t, heap(t), n, split, 0)
			q := d.activate()
			for i, c := range tt.chain {
				d.put(i, c.addr, c.n, c.flags, c.next)
			}
			d.put(100, bufBase, 72, 0, 0)
			for range n {
				d.offer(0)
				b := pop(t, q, 1)
				if len(b.Chains) != 1 {
					t.Fatalf("popped %d chains", len(b.Chains))
				}
				c := b.Chains[0]
				if c.Fault != tt.want || c.ID != 0 || c.ReadLen != 0 || c.WriteLen != 0 ||
					len(b.Readable(0)) != 0 || len(b.Writable(0)) != 0 {
					t.Fatalf("chain %+v, want fault %s", c, tt.want)
				}
				finish(q, b)
			}
			d.offer(100)
			b := pop(t, q, 1)
			if c := b.Chains[0]; c.Fault != 0 || c.ReadLen != 72 {
				t.Fatalf("the chain behind them: %+v", c)
			}
		})
	}
}

// TestFiller: elements of no bytes are legal wherever they point.
func TestFiller(t *testing.T) {
	d := newModel(t, heap(t), 16, split, 0)
	q := d.activate()
	d.put(0, bufBase, 12, next, 1)
	d.put(1, 0xffffffffffffffff, 0, next, 2)
	d.put(2, bufBase+64, 60, 0, 0)
	d.offer(0)
	b := pop(t, q, 1)
	if c := b.Chains[0]; c.Fault != 0 || c.ReadLen != 72 || len(b.Readable(0)) != 2 || c.Count != 3 {
		t.Fatalf("chain %+v with %d segments", c, len(b.Readable(0)))
	}
}

// TestExtremes covers the legal half of reference case V03.
func TestExtremes(t *testing.T) {
	t.Run("as many links as the ring has", func(t *testing.T) {
		const n = 16
		d := newModel(t, heap(t), n, split, 0)
		q := d.activate()
		want := make([]byte, 0, 72)
		for i := range n {
			size, flags := uint32(1), uint16(next)
			if i >= 12 {
				size = 15
			}
			if i == n-1 {
				flags = 0
			}
			at := uint64(bufBase + 64*i)
			mem, _ := d.m.Slice(at, uint64(size))
			for j := range mem {
				mem[j] = byte(i)
			}
			want = append(want, mem...)
			d.put(i, at, size, flags, uint16(i+1))
		}
		d.offer(0)
		b := pop(t, q, 1)
		if got := bytes.Join(b.Readable(0), nil); !bytes.Equal(got, want) || b.Chains[0].Fault != 0 {
			t.Fatalf("fault %s, bytes % x", b.Chains[0].Fault, got)
		}
	})
	t.Run("unaligned indirect table, referred to with the write flag", func(t *testing.T) {
		d := newModel(t, heap(t), 16, split|virtio.FeatureIndirectDesc, 0)
		q := d.activate()
		d.table(0x180001, desc{bufBase, 12, next, 1}, desc{bufBase + 64, 60, 0, 0})
		d.put(3, 0x180001, 32, indirect|write, 0)
		d.offer(3)
		b := pop(t, q, 1)
		if c := b.Chains[0]; c.Fault != 0 || c.ReadLen != 72 || c.ID != 3 || c.Count != 1 {
			t.Fatalf("chain %+v", c)
		}
	})
	t.Run("buffer that ends with its region", func(t *testing.T) {
		d := newModel(t, heap(t), 16, split, 0)
		q := d.activate()
		d.put(0, memSize-72, 72, 0, 0)
		d.offer(0)
		if c := pop(t, q, 1).Chains[0]; c.Fault != 0 || c.ReadLen != 72 {
			t.Fatalf("chain %+v", c)
		}
	})
	t.Run("one buffer of 68 KiB", func(t *testing.T) {
		d := newModel(t, heap(t), 16, split, 0)
		q := d.activate()
		d.put(0, bufBase, 0x11000, write, 0)
		d.offer(0)
		if c := pop(t, q, 1).Chains[0]; c.Fault != 0 || c.WriteLen != 0x11000 {
			t.Fatalf("chain %+v", c)
		}
	})
}

// table writes an indirect table at any address.
func (d *model) table(at uint64, descs ...desc) {
	for i, c := range descs {
		b, ok := d.m.Slice(at+16*uint64(i), 16)
		if !ok {
			d.t.Fatal("table is not in memory")
		}
		for j := range 8 {
			b[j] = byte(c.addr >> (8 * j))
		}
		for j := range 4 {
			b[8+j] = byte(c.n >> (8 * j))
		}
		b[12], b[13] = byte(c.flags), byte(c.flags>>8)
		b[14], b[15] = byte(c.next), byte(c.next>>8)
	}
}

func TestIndirect(t *testing.T) {
	const at = 0x180000
	tests := []struct {
		name    string
		table   []desc
		refer   desc
		fault   vring.Fault
		read    uint64
		written uint64
	}{
		{"two buffers", []desc{{bufBase, 12, next, 1}, {bufBase, 60, 0, 0}}, desc{at, 32, indirect, 0}, 0, 72, 0},
		{"readable, then writable", []desc{{bufBase, 12, next, 1}, {bufBase, 60, write, 0}}, desc{at, 32, indirect, 0}, 0, 12, 60},
		{"empty table", nil, desc{at, 0, indirect, 0}, vring.FaultIndirect, 0, 0},
		{"half an entry", nil, desc{at, 24, indirect, 0}, vring.FaultIndirect, 0, 0},
		{"with next", nil, desc{at, 16, indirect | next, 1}, vring.FaultIndirect, 0, 0},
		{"nested", []desc{{at, 16, indirect, 0}}, desc{at, 16, indirect, 0}, vring.FaultIndirect, 0, 0},
		{"next outside of the table", []desc{{bufBase, 12, next, 1}}, desc{at, 16, indirect, 0}, vring.FaultNext, 0, 0},
		{"loop", []desc{{bufBase, 12, next, 1}, {bufBase, 12, next, 0}}, desc{at, 32, indirect, 0}, vring.FaultLength, 0, 0},
		{"table is not in memory", nil, desc{memSize - 8, 16, indirect, 0}, vring.FaultAddress, 0, 0},
		{"table wraps", nil, desc{0xfffffffffffffff8, 16, indirect, 0}, vring.FaultAddress, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newModel(t, heap(t), 16, split|virtio.FeatureIndirectDesc, 0)
			q := d.activate()
			d.table(at, tt.table...)
			d.put(5, tt.refer.addr, tt.refer.n, tt.refer.flags, tt.refer.next)
			d.offer(5)
			c := pop(t, q, 1).Chains[0]
			if c.Fault != tt.fault || c.ReadLen != tt.read || c.WriteLen != tt.written {
				t.Fatalf("chain %+v", c)
			}
		})
	}
	t.Run("a direct header, then a table of 1024", func(t *testing.T) {
		d := newModel(t, heap(t), 1024, split|virtio.FeatureIndirectDesc, 0)
		q := d.activate()
		long := make([]desc, 1024)
		for i := range long {
			long[i] = desc{bufBase, 1, next, uint16(i + 1)}
		}
		long[1023].flags = 0
		d.table(at, long...)
		d.put(0, bufBase, 12, next, 1)
		d.put(1, at, 16*1024, indirect, 0)
		d.offer(0)
		if c := pop(t, q, 1).Chains[0]; c.Fault != 0 || c.ReadLen != 12+1024 {
			t.Fatalf("chain %+v", c)
		}
	})
}

// TestRegions: buffers and tables that cross from one region to the next.
func TestRegions(t *testing.T) {
	m, err := guestmem.NewHeap([]guestmem.Region{
		{GuestAddr: 0, Size: memSize / 2, UserAddr: userBase},
		{GuestAddr: memSize / 2, Size: memSize / 2, UserAddr: userBase + 1<<32},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	d := newModel(t, m, 16, split|virtio.FeatureIndirectDesc, 0)
	q := d.activate()
	const border = memSize / 2
	d.put(0, border-10, 30, 0, 0)
	d.offer(0)
	b := pop(t, q, 1)
	if c := b.Chains[0]; c.ReadLen != 30 || len(b.Readable(0)) != 2 || len(b.Readable(0)[0]) != 10 {
		t.Fatalf("chain %+v in %d segments", c, len(b.Readable(0)))
	}
	// The second half of the table's only entry is in the other region.
	lo, _ := m.Slice(border-8, 8)
	hi, _ := m.Slice(border, 8)
	copy(lo, []byte{0, 0, 0x18, 0, 0, 0, 0, 0})
	copy(hi, []byte{72, 0, 0, 0, 0, 0, 0, 0})
	d.put(1, border-8, 16, indirect, 0)
	d.offer(1)
	if c := pop(t, q, 1).Chains[0]; c.Fault != 0 || c.ReadLen != 72 {
		t.Fatalf("chain through a divided table: %+v", c)
	}
}

// TestSegments: a chain that does not fit beside others waits, one that fits no
// batch is faulty.
func TestSegments(t *testing.T) {
	d := newModel(t, heap(t), 16, split, 0)
	q := d.activate()
	for i := range 6 {
		d.put(i, bufBase, 1, next, uint16(i+1))
	}
	d.put(6, bufBase, 1, 0, 0)
	d.put(10, bufBase, 1, 0, 0)
	d.offer(10, 0, 10)
	b := vring.NewBatch(8, 4)
	n, err := q.Pop(b, 8)
	if n != 1 || err != nil || b.Chains[0].ID != 10 {
		t.Fatalf("popped %d, %v", n, err)
	}
	b.Reset()
	if n, err = q.Pop(b, 8); n != 2 || err != nil || b.Chains[0].Fault != vring.FaultSegments || b.Chains[1].Fault != 0 {
		t.Fatalf("popped %d, %v: %+v", n, err, b.Chains)
	}
}

// TestBadHead: an available entry that is no descriptor cannot be given back; the
// ring is broken, after what came before it.
func TestBadHead(t *testing.T) {
	for _, head := range []uint16{16, 0xffff} {
		d := newModel(t, heap(t), 16, split, 0)
		q := d.activate()
		d.single(1, 72)
		d.offer(head)
		b := pop(t, q, 8)
		if len(b.Chains) != 1 {
			t.Fatalf("popped %d before the bad head", len(b.Chains))
		}
		finish(q, b)
		for range 2 {
			_, err := q.Pop(b, 8)
			var broken *vring.BrokenError
			if !errors.Is(err, vring.ErrBroken) || !errors.As(err, &broken) || q.Broken() == nil {
				t.Fatalf("head %d: %v", head, err)
			}
		}
		if d.usedIdx() != 1 {
			t.Fatalf("used index %d, want 1", d.usedIdx())
		}
	}
}
