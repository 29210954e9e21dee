package ctrlq

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/vhostnet/vhostnet/virtio"
)

// MaxTable is the number of addresses that a table of the filter holds. A longer
// one lets all unicast, or all multicast frames pass.
const MaxTable = 64

const etherTypeVLAN = 0x8100

// Filter decides which frames a driver receives. It is an immutable value: the
// With methods return a changed one, so workers may use a snapshot without a
// lock. Until the driver has set a receive mode, an address table or a VLAN,
// everything passes (virtio 1.4, "Packet Receive Filtering", "Setting MAC
// Address Filtering", "VLAN Filtering").
type Filter struct {
	mac uint64
	// addressed: a receive mode or a table was set, so addresses are looked at.
	addressed bool
	modes     uint8 // bit n: receive mode n is on
	uni       table
	multi     table
	// vlanSet: the VLAN table was touched.
	vlanSet       bool
	vlanFiltering bool
	vlans         [(maxVLAN + 1) / 64]uint64
}

// table is one address table.
type table struct {
	addrs    [][6]byte // as the driver ordered them
	keys     []uint64  // the same, sorted
	overflow bool
}

func newTable(addrs [][6]byte) table {
	if len(addrs) > MaxTable {
		return table{overflow: true}
	}
	t := table{addrs: slices.Clone(addrs), keys: make([]uint64, len(addrs))}
	for i := range addrs {
		t.keys[i] = addrKey(addrs[i][:])
	}
	slices.Sort(t.keys)
	return t
}

func (t *table) has(key uint64) bool {
	if t.overflow {
		return true
	}
	_, found := slices.BinarySearch(t.keys, key)
	return found
}

func addrKey(b []byte) uint64 {
	return uint64(binary.BigEndian.Uint32(b))<<16 | uint64(binary.BigEndian.Uint16(b[4:]))
}

const (
	broadcast    = 1<<48 - 1
	multicastBit = 1 << 40
)

// NewFilter returns the filter of a device after reset, which lets everything
// pass. With an all-zero address unicast frames are never filtered.
func NewFilter(mac [6]byte) *Filter { return &Filter{mac: addrKey(mac[:])} }

// WithMAC returns f with another address of the device's own.
func (f *Filter) WithMAC(mac [6]byte) *Filter {
	n := *f
	n.mac = addrKey(mac[:])
	return &n
}

// WithMode returns f with a receive mode on or off; cmd is one of the
// virtio.CtrlRX commands. Others change nothing.
func (f *Filter) WithMode(cmd uint8, on bool) *Filter {
	if cmd > virtio.CtrlRXNoBcast {
		return f
	}
	n := *f
	n.addressed = true
	n.modes &^= 1 << cmd
	if on {
		n.modes |= 1 << cmd
	}
	return &n
}

// WithTable returns f with both address tables replaced. The slices are copied.
func (f *Filter) WithTable(unicast, multicast [][6]byte) *Filter {
	n := *f
	n.addressed = true
	n.uni, n.multi = newTable(unicast), newTable(multicast)
	return &n
}

// WithVLAN returns f with a VLAN id, 0 to 4095, in the table or not in it.
// Others change nothing.
func (f *Filter) WithVLAN(id uint16, on bool) *Filter {
	if id > maxVLAN {
		return f
	}
	n := *f
	n.vlanSet = true
	n.vlans[id/64] &^= 1 << (id % 64)
	if on {
		n.vlans[id/64] |= 1 << (id % 64)
	}
	return &n
}

// WithVLANFiltering returns f with VLAN filtering on, as with
// VIRTIO_NET_F_CTRL_VLAN, or off.
func (f *Filter) WithVLANFiltering(on bool) *Filter {
	n := *f
	n.vlanFiltering = on
	return &n
}

// Configured reports whether the driver has set a receive mode, a table or a
// VLAN.
func (f *Filter) Configured() bool { return f.addressed || f.vlanSet }

// Promiscuous reports whether the driver asked for all frames. That goes before
// everything else, the VLAN table included: a bridge in the guest forwards tags
// that the guest itself does not use.
func (f *Filter) Promiscuous() bool { return f.on(virtio.CtrlRXPromisc) }

// AllMulticast reports whether all multicast frames pass, because the driver
// asked for it or because its table is too long.
func (f *Filter) AllMulticast() bool { return f.on(virtio.CtrlRXAllMulti) || f.multi.overflow }

// AllUnicast is AllMulticast for unicast frames.
func (f *Filter) AllUnicast() bool { return f.on(virtio.CtrlRXAllUni) || f.uni.overflow }

// Unicast returns the unicast table, empty if it was too long. It is a copy and
// never nil.
func (f *Filter) Unicast() [][6]byte { return append([][6]byte{}, f.uni.addrs...) }

// Multicast returns the multicast table, empty if it was too long. It is a copy
// and never nil.
func (f *Filter) Multicast() [][6]byte { return append([][6]byte{}, f.multi.addrs...) }

// VLANs returns the ids in the VLAN table in ascending order, never nil.
func (f *Filter) VLANs() []uint16 {
	ids := []uint16{}
	for i, w := range f.vlans {
		for ; w != 0; w &= w - 1 {
			ids = append(ids, uint16(i*64+bits.TrailingZeros64(w)))
		}
	}
	return ids
}

// PassesAll reports whether Match is true for every frame, so that a worker need
// not ask.
func (f *Filter) PassesAll() bool {
	return !f.Configured() || f.Promiscuous() || !f.addressed && !f.vlanFiltering
}

// Match reports whether the driver receives the frame, which starts at the
// destination address. A frame of less than 14 bytes passes only if all do. It
// does not allocate.
func (f *Filter) Match(frame []byte) bool {
	if f.PassesAll() {
		return true
	}
	if len(frame) < 14 {
		return false
	}
	return f.matchVLAN(frame) && f.matchAddr(addrKey(frame))
}

// matchVLAN passes frames without a tag and those that are tagged for their
// priority only, with id 0.
func (f *Filter) matchVLAN(frame []byte) bool {
	if !f.vlanFiltering || binary.BigEndian.Uint16(frame[12:]) != etherTypeVLAN {
		return true
	}
	if len(frame) < 16 {
		return false // the tag is cut off
	}
	id := binary.BigEndian.Uint16(frame[14:]) & maxVLAN
	return id == 0 || f.vlans[id/64]>>(id%64)&1 != 0
}

// matchAddr judges a destination address. Modes that exclude win over modes that
// include; excluding multicast leaves broadcast alone.
func (f *Filter) matchAddr(dst uint64) bool {
	switch {
	case !f.addressed:
		return true
	case dst == broadcast:
		return !f.on(virtio.CtrlRXNoBcast)
	case dst&multicastBit != 0:
		return !f.on(virtio.CtrlRXNoMulti) && (f.on(virtio.CtrlRXAllMulti) || f.multi.has(dst))
	}
	return !f.on(virtio.CtrlRXNoUni) &&
		(f.on(virtio.CtrlRXAllUni) || f.mac == 0 || dst == f.mac || f.uni.has(dst))
}

func (f *Filter) on(mode uint8) bool { return f.modes>>mode&1 != 0 }
