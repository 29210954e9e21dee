package ctrlq

import (
	"encoding/binary"
	"fmt"

	"github.com/vhostnet/vhostnet/virtio"
)

// call is a command on its way to the handler.
type call struct {
	f              virtio.Features
	h              Handler
	class, command uint8
	data           []byte // behind class and command
}

func (c *call) name() string { return virtio.CtrlName(c.class, c.command) }

func (c *call) unknown() error { return fmt.Errorf("%w: %s", ErrUnknown, c.name()) }

// check reports whether the data has want bytes and the feature was negotiated.
func (c *call) check(want int, need virtio.Features) error {
	if len(c.data) != want {
		return fmt.Errorf("%w: %s: %d bytes of data, want %d", ErrMalformed, c.name(), len(c.data), want)
	}
	return c.negotiated(need)
}

func (c *call) negotiated(need virtio.Features) error {
	if need |= virtio.FeatureCtrlVQ; !c.f.Has(need) {
		return fmt.Errorf("%w: %s: %s", ErrNotNegotiated, c.name(), need&^c.f)
	}
	return nil
}

// refused wraps the handler's error.
func (c *call) refused(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("ctrlq: %s: %w", c.name(), err)
}

func (c *call) rx() error {
	need, set := virtio.FeatureCtrlRXExtra, c.h.SetPromisc
	switch c.command {
	case virtio.CtrlRXPromisc:
		need = virtio.FeatureCtrlRX
	case virtio.CtrlRXAllMulti:
		need, set = virtio.FeatureCtrlRX, c.h.SetAllMulti
	case virtio.CtrlRXAllUni:
		set = c.h.SetAllUni
	case virtio.CtrlRXNoMulti:
		set = c.h.SetNoMulti
	case virtio.CtrlRXNoUni:
		set = c.h.SetNoUni
	case virtio.CtrlRXNoBcast:
		set = c.h.SetNoBcast
	default:
		return c.unknown()
	}
	if err := c.check(1, need); err != nil {
		return err
	}
	return c.refused(set(c.data[0] != 0))
}

func (c *call) mac() error {
	switch c.command {
	case virtio.CtrlMACTableSet:
		return c.macTable()
	case virtio.CtrlMACAddrSet:
		if err := c.check(macLen, virtio.FeatureCtrlMACAddr); err != nil {
			return err
		}
		mac := [macLen]byte(c.data)
		if mac[0]&1 != 0 || mac == [macLen]byte{} {
			return fmt.Errorf("%w: %s: %x is no address of an interface", ErrMalformed, c.name(), mac)
		}
		return c.refused(c.h.SetMAC(mac))
	}
	return c.unknown()
}

func (c *call) macTable() error {
	unicast, rest, ok := cutTable(c.data)
	if !ok {
		return fmt.Errorf("%w: %s: unicast table longer than the data", ErrMalformed, c.name())
	}
	multicast, rest, ok := cutTable(rest)
	if !ok || len(rest) != 0 {
		return fmt.Errorf("%w: %s: multicast table does not fill the data", ErrMalformed, c.name())
	}
	if err := c.negotiated(virtio.FeatureCtrlRX); err != nil {
		return err
	}
	return c.refused(c.h.SetMACTable(addresses(unicast), addresses(multicast)))
}

// cutTable cuts a table, le32 count and addresses, off the beginning of b. The
// count is compared with what is there before anything is computed from it.
func cutTable(b []byte) (table, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := binary.LittleEndian.Uint32(b)
	b = b[4:]
	if uint64(n) > uint64(len(b)/macLen) {
		return nil, nil, false
	}
	return b[:n*macLen], b[n*macLen:], true
}

func addresses(b []byte) [][macLen]byte {
	list := make([][macLen]byte, len(b)/macLen)
	for i := range list {
		list[i] = [macLen]byte(b[i*macLen:])
	}
	return list
}

func (c *call) vlan() error {
	set := c.h.AddVLAN
	switch c.command {
	case virtio.CtrlVLANAdd:
	case virtio.CtrlVLANDel:
		set = c.h.DelVLAN
	default:
		return c.unknown()
	}
	if err := c.check(2, virtio.FeatureCtrlVLAN); err != nil {
		return err
	}
	id := binary.LittleEndian.Uint16(c.data)
	if id > maxVLAN {
		return fmt.Errorf("%w: %s: id %d: want 0 to %d", ErrMalformed, c.name(), id, maxVLAN)
	}
	return c.refused(set(id))
}

func (c *call) announce() error {
	if c.command != virtio.CtrlAnnounceAck {
		return c.unknown()
	}
	if err := c.check(0, virtio.FeatureGuestAnnounce); err != nil {
		return err
	}
	return c.refused(c.h.AckAnnounce())
}

func (c *call) mq() error {
	switch c.command {
	case virtio.CtrlMQVQPairsSet:
	case virtio.CtrlMQRSSConfig:
		return c.rss()
	case virtio.CtrlMQHashConfig:
		return c.hash()
	default:
		return c.unknown()
	}
	if err := c.check(2, virtio.FeatureMQ); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint16(c.data)
	if n < 1 || n > maxQueuePairs {
		return fmt.Errorf("%w: %s: %d pairs: want 1 to %d", ErrMalformed, c.name(), n, maxQueuePairs)
	}
	return c.refused(c.h.SetQueuePairs(n))
}

func (c *call) guestOffloads() error {
	if c.command != virtio.CtrlGuestOffloadsSet {
		return c.unknown()
	}
	if err := c.check(8, virtio.FeatureCtrlGuestOffloads); err != nil {
		return err
	}
	bits := binary.LittleEndian.Uint64(c.data)
	if c.f.Has(virtio.FeatureGuestHdrLen) {
		// Linux counts it among the offloads; there is nothing to switch.
		bits &^= uint64(virtio.FeatureGuestHdrLen)
	}
	if extra := bits &^ virtio.GuestOffloads(c.f); extra != 0 {
		return fmt.Errorf("%w: %s: offloads %#x", ErrNotNegotiated, c.name(), extra)
	}
	return c.refused(c.h.SetGuestOffloads(bits))
}

// notfCoal handles the commands of the class that only set.
func (c *call) notfCoal() error {
	set := c.h.SetTXCoalesce
	switch c.command {
	case virtio.CtrlNotfCoalTXSet:
	case virtio.CtrlNotfCoalRXSet:
		set = c.h.SetRXCoalesce
	case virtio.CtrlNotfCoalVQSet:
		if err := c.check(4+coalLen, virtio.FeatureVQNotfCoal); err != nil {
			return err
		}
		// The index is followed by two reserved bytes.
		usecs, packets := coal(c.data[4:])
		return c.refused(c.h.SetVQCoalesce(binary.LittleEndian.Uint16(c.data), usecs, packets))
	default:
		return c.unknown()
	}
	if err := c.check(coalLen, virtio.FeatureNotfCoal); err != nil {
		return err
	}
	usecs, packets := coal(c.data)
	return c.refused(set(usecs, packets))
}

// vqGet returns the encoded limits of a virtqueue.
func (c *call) vqGet(room int) ([]byte, error) {
	want := 4
	if len(c.data) == 2 {
		want = 2 // without the reserved bytes
	}
	if err := c.check(want, virtio.FeatureVQNotfCoal); err != nil {
		return nil, err
	}
	if room < coalLen+ackLen {
		return nil, fmt.Errorf("%w: %s: %d bytes, want %d", ErrNoRoom, c.name(), room, coalLen+ackLen)
	}
	usecs, packets, err := c.h.VQCoalesce(binary.LittleEndian.Uint16(c.data))
	if err != nil {
		return nil, c.refused(err)
	}
	value := binary.LittleEndian.AppendUint32(make([]byte, 0, coalLen), packets)
	return binary.LittleEndian.AppendUint32(value, usecs), nil
}
