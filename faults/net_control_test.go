package faults

import (
	"bytes"
	"slices"
	"testing"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/virtio"
)

// N09: the control ring's index follows from how many pairs the device has, if the
// driver knows of them, and not from how many it uses.
func TestN09ControlRing(t *testing.T) {
	t.Parallel()
	const control = virtio.FeatureCtrlRX | virtio.FeatureNotfCoal
	for name, f := range map[string]virtio.Features{"flags": 0, "event index": virtio.FeatureEventIdx} {
		for _, pairs := range []string{"1", "4"} {
			t.Run(name+"/"+pairs, func(t *testing.T) {
				t.Parallel()
				c, api := serveAPI(t, "echo", "--queue-pairs="+pairs)
				g := c.Dial(t)
				g.Hello(control | f)
				watch(g, 0, 1, 2)
				commands(t, g, 2)
				c.RoundTrip(g)
				c.Alive(g)
				if pairs == "1" {
					return
				}
				g = c.Dial(t)
				g.Hello(control | virtio.FeatureMQ | f)
				watch(g, 0, 1, 2, 3, 8)
				before := api.device(t).Control.OK
				commands(t, g, 8)
				if d := api.device(t); d.ActiveQueuePairs != 1 {
					t.Errorf("%d pairs in use, want 1", d.ActiveQueuePairs)
				}
				expectAck(t, g, 8, virtio.CtrlOK, virtio.CtrlMQ, virtio.CtrlMQVQPairsSet, 2, 0)
				commands(t, g, 8)
				for _, n := range []byte{0, 5} {
					expectAck(t, g, 8, virtio.CtrlErr, virtio.CtrlMQ, virtio.CtrlMQVQPairsSet, n, 0)
				}
				if n := api.device(t).Control.OK - before; n != 2*300+1 {
					t.Errorf("%d commands were carried out, want %d", n, 2*300+1)
				}
				// Ring 2 is the second pair's: no command is carried out there.
				g.Post(2, 1)
				barrier(g, 2)
				if n := g.Ring(2).UsedIdx(); n != 0 {
					t.Errorf("ring 2: used index %d", n)
				}
				c.RoundTrip(g)
				c.Alive(g)
			})
		}
	}
}

// commands sends 300 commands, sleeping for each answer.
func commands(t *testing.T, g *scripted.Guest, q int) {
	t.Helper()
	r, eventIdx := g.Ring(q), g.Features.Has(virtio.FeatureEventIdx)
	copy(g.Mem.At(scratch, 3), []byte{virtio.CtrlRX, virtio.CtrlRXPromisc, 1})
	for i := range 300 {
		// The device asks to be told of the next command, and of no other.
		scripted.Until(t, "the control ring asks for a kick", func() bool { return needKick(r, r.Next-1, eventIdx) || !eventIdx || r.AvailEvent() == r.Next })
		signals(g, r.Call)
		r.SetUsedEvent(r.Next)
		g.Mem.Bytes[scratch+32] = 0xA5
		_, err := r.Add(scripted.Seg{Addr: scratch, Len: 2}, scripted.Seg{Addr: scratch + 2, Len: 1}, scripted.Seg{Addr: scratch + 32, Len: 1, Write: true})
		g.Must(err)
		kick(g, q)
		if err := r.WaitCall(scripted.Hang); err != nil {
			t.Fatalf("command %d: no call: %v", i, err)
		}
		_, n, err := r.Wait()
		if ack := g.Mem.Bytes[scratch+32]; err != nil || n != 1 || ack != virtio.CtrlOK {
			t.Fatalf("command %d: answer %d, %d bytes, %v", i, ack, n, err)
		}
	}
}

// macTable is the data of MAC_TABLE_SET.
func macTable(unicast, multicast [][]byte) (b []byte) {
	for _, addrs := range [][][]byte{unicast, multicast} {
		b = append(append(b, le32(uint32(len(addrs)))...), slices.Concat(addrs...)...)
	}
	return b
}

// N11: commands whose data is not what it says.
func TestN11Commands(t *testing.T) {
	t.Parallel()
	const ok, no = virtio.CtrlOK, virtio.CtrlErr
	c, api := serveAPI(t, "echo", "--mac=02:56:4e:53:00:99")
	addrs := func(first byte, n int) (list [][]byte) {
		for i := range n {
			list = append(list, []byte{first, 0, 0, 0, byte(i >> 8), byte(i)})
		}
		return list
	}
	const filters = virtio.FeatureCtrlRX | virtio.FeatureCtrlVLAN | virtio.FeatureCtrlRXExtra | virtio.FeatureCtrlMACAddr | virtio.FeatureGuestAnnounce
	for _, f := range []virtio.Features{filters, 0} {
		g := c.Dial(t)
		g.Hello(f)
		watch(g, 0, 1, 2)
		is := func(want, class, cmd uint8, data ...byte) { t.Helper(); expectAck(t, g, 2, want, class, cmd, data...) }
		// What was not negotiated is refused, also what drivers send anyhow.
		only := uint8(ok)
		if f == 0 {
			only = no
		}
		const mac, vlan, rx = virtio.CtrlMAC, virtio.CtrlVLAN, virtio.CtrlRX
		is(no, mac, virtio.CtrlMACTableSet, append(le32(0xFFFFFFFF), 2, 0, 0, 0, 0, 1)...)
		is(no, mac, virtio.CtrlMACTableSet, append(le32(0x2AAAAAAB), 2, 0, 0, 0, 0, 1)...) // times 6 is 2 in 32 bits
		is(no, mac, virtio.CtrlMACTableSet, append(le32(1), 2, 0, 0, 0, 0, 1)...)
		is(no, mac, virtio.CtrlMACTableSet)
		is(no, mac, virtio.CtrlMACTableSet, append(macTable(addrs(2, 3), addrs(1, 3)), 0)...)
		is(only, mac, virtio.CtrlMACTableSet, macTable(nil, nil)...)
		is(only, mac, virtio.CtrlMACTableSet, macTable(addrs(2, 64), addrs(1, 65))...)
		is(only, mac, virtio.CtrlMACTableSet, macTable(addrs(2, 300), addrs(1, 300))...)
		// An address that no table has room for passes.
		c.RoundTrip(g)
		is(only, mac, virtio.CtrlMACTableSet, macTable([][]byte{{2, 0x56, 0x4E, 0x53, 0, 2}}, nil)...)
		c.RoundTrip(g)
		is(only, mac, virtio.CtrlMACTableSet, macTable([][]byte{{2, 0x56, 0x4E, 0x53, 0, 3}}, nil)...)
		if f != 0 {
			before := api.queue(t, 0).Drops["filter"]
			g.Post(0, 1)
			g.Transmit(1, g.Frame(60))
			scripted.Until(t, "the frame is filtered", func() bool { return api.queue(t, 0).Drops["filter"] == before+1 })
		}
		is(only, rx, virtio.CtrlRXPromisc, 1)
		c.RoundTrip(g)

		for _, id := range [][]byte{{0, 0}, {0xFE, 0x0F}, {0xFF, 0x0F}} {
			is(only, vlan, virtio.CtrlVLANAdd, id...)
			is(only, vlan, virtio.CtrlVLANDel, id...)
			is(only, vlan, virtio.CtrlVLANDel, id...)
		}
		for _, id := range [][]byte{{0, 0x10}, {0xFF, 0xFF}} {
			is(no, vlan, virtio.CtrlVLANAdd, id...)
			is(no, vlan, virtio.CtrlVLANDel, id...)
		}
		for id := range 4095 {
			is(only, vlan, virtio.CtrlVLANAdd, byte(id), byte(id>>8))
		}
		is(no, vlan, virtio.CtrlVLANAdd, 1)
		is(no, vlan, virtio.CtrlVLANAdd, 1, 0, 0)
		is(no, vlan, 2, 1, 0)

		is(only, rx, virtio.CtrlRXPromisc, 2)
		is(no, rx, virtio.CtrlRXPromisc, 1, 0)
		is(no, rx, virtio.CtrlRXPromisc)
		for cmd := range uint8(6) {
			is(only, rx, cmd, 0)
		}
		is(no, rx, 6, 1)
		is(only, rx, virtio.CtrlRXPromisc, 1)

		is(no, mac, virtio.CtrlMACAddrSet, 3, 0, 0, 0, 0, 1)
		is(no, mac, virtio.CtrlMACAddrSet, 0, 0, 0, 0, 0, 0)
		is(no, mac, virtio.CtrlMACAddrSet, 2, 0, 0, 0, 0)
		is(only, mac, virtio.CtrlMACAddrSet, 2, 0, 0, 0, 0, 7)

		// RSS and hash reports are not on offer.
		for _, data := range [][]byte{nil, le32(3), bytes.Repeat([]byte{0xFF}, 44), bytes.Repeat([]byte{1}, 0x1000)} {
			is(no, virtio.CtrlMQ, 1, data...)
			is(no, virtio.CtrlMQ, 2, data...)
		}
		is(no, virtio.CtrlMQ, virtio.CtrlMQVQPairsSet, 1, 0)
		is(only, virtio.CtrlAnnounce, virtio.CtrlAnnounceAck)
		is(no, virtio.CtrlAnnounce, 1)
		for class := 7; class < 256; class += 31 {
			is(no, uint8(class), 0)
			is(no, uint8(class), 255, 1, 2, 3)
		}
		// A request of one byte, and none.
		for _, segs := range [][]scripted.Seg{
			{{Addr: scratch, Len: 1}, {Addr: scratch + 32, Len: 1, Write: true}},
			{{Addr: scratch + 32, Len: 1, Write: true}},
		} {
			g.Mem.Bytes[scratch+32] = 0xA5
			_, err := g.Ring(2).Add(segs...)
			g.Must(err)
			kick(g, 2)
			if _, n, err := g.Ring(2).Wait(); err != nil || n != 1 || g.Mem.Bytes[scratch+32] != no {
				t.Errorf("short request: answer %d, %d bytes, %v", g.Mem.Bytes[scratch+32], n, err)
			}
		}
		// One without room for an answer has no effect, and comes back.
		_, err := g.Ring(2).Add(scripted.Seg{Addr: scratch, Len: 3})
		g.Must(err)
		kick(g, 2)
		if _, n, err := g.Ring(2).Wait(); err != nil || n != 0 {
			t.Errorf("no room for an answer: %d bytes, %v", n, err)
		}
		c.RoundTrip(g)
		c.Alive(g)
	}
}
