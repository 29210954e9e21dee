package vring

import (
	"fmt"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// Config describes a ring as the front-end set it up.
type Config struct {
	// Size is the number of descriptors, 1 to MaxSize, a power of two if the ring
	// is split.
	Size int
	// Desc, Driver and Device are the front-end's addresses: of a split ring's
	// descriptor table, available ring and used ring, aligned to 16, 2 and 4; of a
	// packed one's descriptor ring and the driver's and the device's event
	// suppression structures, aligned to 16, 4 and 4.
	Desc, Driver, Device uint64
	// Base is where to go on, as in the vhost-user messages GET_VRING_BASE and
	// SET_VRING_BASE. Of a split ring it is the index of the next available entry,
	// 0 to 65535. Of a packed one the low half is where the next available
	// descriptor is, bit 15 being the wrap counter, and the high half where the
	// next used one goes. A high half of 0 stands for the low one, for front-ends
	// that know of no more. 0 stands for the beginning of a ring that no driver has
	// used, where both counters are 1.
	Base uint32
	// Features are those negotiated; RING_PACKED, INDIRECT_DESC and EVENT_IDX matter
	// here.
	Features virtio.Features
}

// State is what a stopped ring leaves behind.
type State struct {
	// Base is where to go on, as in [Config].
	Base uint32
}

func (c Config) packed() bool { return c.Features.Has(virtio.FeatureRingPacked) }

// Format names the kind of ring, "split" or "packed".
func (c Config) Format() string {
	if c.packed() {
		return "packed"
	}
	return "split"
}

// CheckSize fails with [ErrConfig] if a ring cannot have that size.
func (c Config) CheckSize() error {
	switch {
	case c.Size < 1 || c.Size > MaxSize:
		return fmt.Errorf("%w: size %d: want 1 to %d", ErrConfig, c.Size, MaxSize)
	case !c.packed() && c.Size&(c.Size-1) != 0:
		return fmt.Errorf("%w: size %d: want a power of two for a split ring", ErrConfig, c.Size)
	}
	return nil
}

// Areas finds the ring's descriptors, and the driver's and the device's area, in
// the front-end's memory. It fails with [ErrConfig] if one is not in one region, or
// is misaligned.
func (c Config) Areas(m *guestmem.Map) (areas [3][]byte, err error) {
	type area struct {
		name        string
		addr, align uint64
		size        int
	}
	want := [3]area{
		{"descriptor table", c.Desc, 16, descSize * c.Size},
		{"available ring", c.Driver, 2, offRing + 2*c.Size + 2},
		{"used ring", c.Device, 4, offRing + usedElemSize*c.Size + 2},
	}
	if c.packed() {
		want = [3]area{
			{"descriptor ring", c.Desc, 16, descSize * c.Size},
			{"driver event structure", c.Driver, 4, eventSize},
			{"device event structure", c.Device, 4, eventSize},
		}
	}
	for i, a := range want {
		b, ok := m.UserSlice(a.addr, uint64(a.size))
		switch {
		case !ok:
			return areas, fmt.Errorf("%w: %s of %d bytes at %#x is not in one memory region", ErrConfig, a.name, a.size, a.addr)
		case a.addr&(a.align-1) != 0 || !guestmem.Aligned(b, uintptr(a.align)):
			return areas, fmt.Errorf("%w: %s at %#x is not aligned to %d bytes", ErrConfig, a.name, a.addr, a.align)
		}
		areas[i] = b
	}
	return areas, nil
}
