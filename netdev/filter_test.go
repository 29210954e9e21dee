package netdev_test

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/virtio"
)

// TestFilterModes sends a frame of each kind after each command and looks at which
// arrive: the six modes, both tables and their overflow, and the VLAN table.
func TestFilterModes(t *testing.T) {
	own := [6]byte{2, 0x56, 0, 0, 0, 1}
	listed, other := [6]byte{2, 0x56, 0, 0, 0, 2}, [6]byte{2, 0x56, 0, 0, 0, 3}
	group, stranger := [6]byte{1, 0, 0x5e, 0, 0, 1}, [6]byte{1, 0, 0x5e, 0, 0, 2}
	all := [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	kinds := []struct {
		name string
		dst  [6]byte
		vlan uint16 // tag, 0 for none
	}{
		{"own", own, 0},
		{"listed", listed, 0},
		{"other", other, 0},
		{"group", group, 0},
		{"stranger", stranger, 0},
		{"broadcast", all, 0},
		{"vlan 5", own, 5},
		{"vlan 6", own, 6},
	}
	r := newRig(t, netdev.Config{MAC: own}, driver.Config{})
	many := func(first byte) [][6]byte {
		list := make([][6]byte, 65)
		for i := range list {
			list[i] = [6]byte{first, 9, 9, 9, 9, byte(i)}
		}
		return list
	}
	round := uint32(0)
	for _, step := range []struct {
		name    string
		command func() error
		passes  []string
	}{
		{"no command", func() error { return nil }, []string{"own", "listed", "other", "group", "stranger", "broadcast", "vlan 5", "vlan 6"}},
		{"tables", func() error { return r.d.SetMACTable([][6]byte{listed}, [][6]byte{group}) }, []string{"own", "listed", "group", "broadcast"}},
		{"VLAN_ADD", func() error { return r.d.AddVLAN(5) }, []string{"own", "listed", "group", "broadcast", "vlan 5"}},
		{"ALLMULTI", func() error { return r.d.SetRXMode(driver.AllMulticast, true) }, []string{"own", "listed", "group", "stranger", "broadcast", "vlan 5"}},
		{"NOMULTI beats ALLMULTI", func() error { return r.d.SetRXMode(driver.NoMulticast, true) }, []string{"own", "listed", "broadcast", "vlan 5"}},
		{"ALLUNI", func() error { return r.d.SetRXMode(driver.AllUnicast, true) }, []string{"own", "listed", "other", "broadcast", "vlan 5"}},
		{"NOUNI beats ALLUNI", func() error { return r.d.SetRXMode(driver.NoUnicast, true) }, []string{"broadcast"}},
		{"PROMISC beats all", func() error { return r.d.SetRXMode(driver.Promiscuous, true) }, []string{"own", "listed", "other", "group", "stranger", "broadcast", "vlan 5", "vlan 6"}},
		{"PROMISC off", func() error { return r.d.SetRXMode(driver.Promiscuous, false) }, []string{"broadcast"}},
		{"NOUNI off", func() error { return r.d.SetRXMode(driver.NoUnicast, false) }, []string{"own", "listed", "other", "broadcast", "vlan 5"}},
		{"NOBCAST", func() error { return r.d.SetRXMode(driver.NoBroadcast, true) }, []string{"own", "listed", "other", "vlan 5"}},
		{"ALLUNI off", func() error { return r.d.SetRXMode(driver.AllUnicast, false) }, []string{"own", "listed", "vlan 5"}},
		{"NOMULTI off", func() error { return r.d.SetRXMode(driver.NoMulticast, false) }, []string{"own", "listed", "group", "stranger", "vlan 5"}},
		{"ALLMULTI off", func() error { return r.d.SetRXMode(driver.AllMulticast, false) }, []string{"own", "listed", "group", "vlan 5"}},
		{"too many groups", func() error { return r.d.SetMACTable(nil, many(1)) }, []string{"own", "group", "stranger", "vlan 5"}},
		{"too many addresses", func() error { return r.d.SetMACTable(many(2), nil) }, []string{"own", "listed", "other", "vlan 5"}},
		{"VLAN_DEL", func() error { return r.d.DelVLAN(5) }, []string{"own", "listed", "other"}},
		{"another address", func() error { return r.d.SetMAC(other) }, []string{"own", "listed", "other"}},
		{"empty tables", func() error { return r.d.SetMACTable(nil, nil) }, []string{"other"}},
	} {
		r.must(step.command())
		before := r.queue(0)
		for i, k := range kinds {
			f := testFrame(round<<8|uint32(i), 60)
			copy(f[12:], k.dst[:])
			if k.vlan != 0 {
				copy(f[24:], []byte{0x81, 0, byte(k.vlan >> 8), byte(k.vlan), 8, 0})
				binary.BigEndian.PutUint32(f[12+18:], round<<8|uint32(i))
			}
			r.port.queues[0].inject(f)
		}
		var got []string
		r.packets(0, len(step.passes), func(p *driver.Packet) {
			at := 14
			if binary.BigEndian.Uint16(p.Frame()[12:]) == 0x8100 {
				at = 18
			}
			if n := binary.BigEndian.Uint32(p.Frame()[at:]); n>>8 == round {
				got = append(got, kinds[n&0xff].name)
			} else {
				t.Errorf("%s: a frame of round %d", step.name, n>>8)
			}
		})
		r.until("every frame is counted", func() bool {
			q := r.queue(0)
			return int(q.Packets-before.Packets+q.Drops["filter"]-before.Drops["filter"]) == len(kinds)
		})
		if !slices.Equal(got, step.passes) {
			t.Errorf("%s: %v pass, want %v", step.name, got, step.passes)
		}
		round++
	}
	// Everything comes back with the next driver.
	r.stop()
	r.drive(driver.Config{})
	f := testFrame(1, 60)
	copy(f[virtio.NetHeaderLen:], stranger[:])
	r.port.queues[0].inject(f)
	r.receive(0, 1)
}
