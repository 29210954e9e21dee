package driver

import (
	"encoding/binary"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// dumbDevice is the device's side of one virtqueue, written for the eye and not
// for speed: it takes one entry at a time and decides about notifications by
// walking over every index.
type dumbDevice struct {
	t         testing.TB
	m         *guestmem.Map
	size      uint16
	eventIdx  bool
	desc      []byte
	availRing []byte
	usedRing  []byte
	avail     guestmem.View
	used      guestmem.View
	call      int

	lastAvail, usedIdx, decided uint16
	calls                       uint64
	word                        [8]byte // for eventfd I/O

	packed *dumbPacked // nil for a split ring
}

// chain is one request: its head and its segments.
type chain struct {
	head     uint16
	out, in  [][]byte
	indirect bool
}

func (c *chain) readable() (b []byte) {
	for _, s := range c.out {
		b = append(b, s...)
	}
	return b
}

func newDumbDevice(t testing.TB, d *Driver, index int) *dumbDevice {
	for _, q := range d.rings {
		if q.index != index {
			continue
		}
		m := d.mem.m
		at := func(a area) []byte {
			b, ok := m.UserSlice(a.user(), uint64(len(a.b)))
			if !ok {
				t.Fatalf("virtqueue %d: area at %#x is not in the memory", index, a.user())
			}
			return b
		}
		dev := &dumbDevice{t: t, m: m, size: uint16(q.size), eventIdx: d.features.Has(virtio.FeatureEventIdx), call: q.call}
		if q.packed != nil {
			dev.packed = newDumbPacked(at(q.descArea), at(q.availArea), at(q.usedArea))
			return dev
		}
		dev.desc = at(q.descArea)
		a, u := at(q.availArea), at(q.usedArea)
		dev.avail, dev.used = guestmem.NewView(a), guestmem.NewView(u)
		dev.availRing, dev.usedRing = a[4:], u[4:]
		return dev
	}
	t.Fatalf("no virtqueue %d", index)
	return nil
}

func (d *dumbDevice) availIdx() uint16 {
	if p := d.packed; p != nil {
		return d.lastAvail + p.available()
	}
	return uint16(d.avail.Load32(0) >> 16)
}

// pop takes the next available chain.
func (d *dumbDevice) pop() (c chain, ok bool) {
	if d.packed != nil {
		return d.popPacked()
	}
	if d.availIdx() == d.lastAvail {
		return chain{}, false
	}
	c.head = binary.LittleEndian.Uint16(d.availRing[2*(d.lastAvail%d.size):])
	d.lastAvail++
	table, i, n := d.desc, c.head, 0
	for {
		addr := binary.LittleEndian.Uint64(table[16*int(i):])
		length := binary.LittleEndian.Uint32(table[16*int(i)+8:])
		flags := binary.LittleEndian.Uint16(table[16*int(i)+12:])
		b, found := d.m.Slice(addr, uint64(length))
		if !found {
			panic(fmt.Sprintf("descriptor %d: %d bytes at %#x are not in the memory", i, length, addr))
		}
		switch {
		case flags&virtio.DescFIndirect != 0:
			table, i, c.indirect = b, 0, true
			continue
		case flags&virtio.DescFWrite != 0:
			c.in = append(c.in, b)
		default:
			c.out = append(c.out, b)
		}
		if n++; n > int(d.size) {
			panic("endless chain")
		}
		if flags&virtio.DescFNext == 0 {
			return c, true
		}
		i = binary.LittleEndian.Uint16(table[16*int(i)+14:])
	}
}

// fill writes a used entry without publishing it; ahead counts those before it
// that are not published either.
func (d *dumbDevice) fill(ahead uint16, id, length uint32) {
	if d.packed != nil {
		d.packed.fill(int(ahead), id, length)
		return
	}
	e := d.usedRing[8*((d.usedIdx+ahead)%d.size):]
	binary.LittleEndian.PutUint32(e, id)
	binary.LittleEndian.PutUint32(e[4:], length)
}

// publish makes n filled entries visible.
func (d *dumbDevice) publish(n uint16) {
	d.usedIdx += n
	if d.packed != nil {
		d.packed.publish(int(n))
		return
	}
	d.used.Store32(0, d.used.Load32(0)&0xffff|uint32(d.usedIdx)<<16)
}

func (d *dumbDevice) complete(head uint16, length int) {
	d.fill(0, uint32(head), uint32(length))
	d.publish(1)
}

// wanted decides by the specification's words: notify if the driver's event
// index is one of those passed since the last decision.
func (d *dumbDevice) wanted() bool {
	if d.packed != nil {
		return d.packed.wanted()
	}
	old := d.decided
	d.decided = d.usedIdx
	if !d.eventIdx {
		return d.avail.Load32(0)&virtio.AvailFNoInterrupt == 0 && old != d.usedIdx
	}
	event := uint16(d.avail.Load32(4 + 2*int(d.size)))
	for i := old; i != d.usedIdx; i++ {
		if i == event {
			return true
		}
	}
	return false
}

func (d *dumbDevice) notify() {
	if d.wanted() {
		d.ring()
	}
}

func (d *dumbDevice) ring() {
	binary.NativeEndian.PutUint64(d.word[:], 1)
	if _, err := unix.Write(d.call, d.word[:]); err != nil {
		panic(err)
	}
	d.calls++
}

// setAvailEvent says from which available index on the device wants a kick.
func (d *dumbDevice) setAvailEvent(event uint16) { d.used.Store32(4+8*int(d.size), uint32(event)) }

// setNoKicks sets the flag that a device without EVENT_IDX uses.
func (d *dumbDevice) setNoKicks(on bool) {
	flags := uint32(0)
	if on {
		flags = virtio.UsedFNoNotify
	}
	d.used.Store32(0, d.used.Load32(0)&0xffff0000|flags)
}

// frame puts a frame into receive buffers as a device with MRG_RXBUF does, and
// publishes them together. It reports whether there were enough buffers.
func (d *dumbDevice) frame(hdrLen int, payload []byte) bool {
	return d.frameWith(hdrLen, payload, nil)
}

func (d *dumbDevice) frameWith(hdrLen int, payload []byte, tamper func(hdr []byte)) bool {
	rest := append(make([]byte, hdrLen), payload...)
	start := d.mark()
	var first []byte
	n := uint16(0)
	for len(rest) > 0 {
		c, ok := d.pop()
		if !ok {
			d.rewind(start)
			return false
		}
		k := copy(c.in[0], rest)
		rest = rest[k:]
		if n == 0 {
			first = c.in[0]
		}
		d.fill(n, uint32(c.head), uint32(k))
		n++
	}
	if hdrLen >= virtio.NetHeaderLen {
		binary.LittleEndian.PutUint16(first[10:], n)
	}
	if tamper != nil {
		tamper(first)
	}
	d.publish(n)
	return true
}

// newOffline makes a driver with its memory and virtqueues, but without a
// connection: the test plays the device.
func newOffline(t testing.TB, cfg Config, f virtio.Features) *Driver {
	t.Helper()
	if err := cfg.check(); err != nil {
		t.Fatal(err)
	}
	if packedRings {
		f |= virtio.FeatureRingPacked
	}
	d := &Driver{cfg: cfg, features: f, wake: -1}
	d.config.maxPairs = cfg.QueuePairs
	if err := d.build(); err != nil {
		t.Fatal(err)
	}
	for _, q := range d.rings {
		q.publish()
		_, _ = unix.Read(q.kick, q.word[:])
	}
	t.Cleanup(func() {
		for _, q := range d.rings {
			q.close()
		}
		_ = unix.Close(d.wake)
		d.mem.close()
	})
	return d
}

const plain = virtio.FeatureVersion1

const modern = virtio.FeatureVersion1 | virtio.FeatureMrgRxBuf | virtio.FeatureEventIdx | virtio.FeatureIndirectDesc

// kicks reads what the driver wrote to a kick eventfd.
func kicks(t testing.TB, d *Driver, index int) uint64 {
	t.Helper()
	for _, q := range d.rings {
		if q.index == index {
			var b [8]byte
			if _, err := unix.Read(q.kick, b[:]); err != nil {
				return 0
			}
			return binary.NativeEndian.Uint64(b[:])
		}
	}
	t.Fatalf("no virtqueue %d", index)
	return 0
}

// pattern is a frame of n bytes that differs from those with another seed.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + seed*13 + i>>8)
	}
	return b
}
