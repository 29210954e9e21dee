package faults

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/virtio"
)

// stack is the host's network stack on the TAP: a packet socket whose frames are
// segmented and summed as those of a TCP connection are.
type stack struct {
	fd int
	to unix.SockaddrLinklayer
}

func newStack(t *testing.T) *stack {
	t.Helper()
	link, err := net.InterfaceByName(scripted.TAP)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal("packet socket:", err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		t.Fatal("packet socket:", err)
	}
	return &stack{fd, unix.SockaddrLinklayer{Protocol: 0x0008, Ifindex: link.Index}}
}

// send sends 4000 bytes of TCP in segments of 1000, if the TAP does not take them
// in one.
func (s *stack) send(t *testing.T) (payload []byte) {
	t.Helper()
	hdr := virtio.NetHeader{
		Flags: virtio.NetHdrFNeedsCSum, GSOType: virtio.GSOTCPv4, HdrLen: 54, GSOSize: 1000, CSumStart: 34, CSumOffset: 16,
	}
	b := make([]byte, virtio.NetHeaderLenLegacy)
	hdr.Encode(b)
	f := tcp4(4000, false)
	if err := unix.Sendto(s.fd, append(b, f...), 0, &s.to); err != nil {
		t.Fatal("into the TAP:", err)
	}
	return f[54:]
}

// N06: what the host may leave to the driver is what this driver accepted, and no
// driver before it.
func TestN06Offloads(t *testing.T) {
	t.Parallel()
	h := scripted.NewHost(t, 1)
	c := h.ServeTAP(t)
	s := newStack(t)
	const tso = virtio.FeatureGuestTSO4 | virtio.FeatureGuestTSO6
	const csum = virtio.FeatureGuestCSum
	// received expects the host's segments: one or four, summed or not.
	received := func(g *scripted.Guest, whole, summed bool) {
		t.Helper()
		restart(g, 0, 0)
		r := newReceiver(t, g)
		for range 16 {
			r.post(2048)
		}
		want := s.send(t)
		var got []byte
		for len(got) < len(want) {
			f, _, _ := r.frame()
			switch {
			case len(f) < 54 || whole && len(f) != 4054 || !whole && len(f) != 1054:
				t.Fatalf("%v: a frame of %d bytes", g.Features, len(f))
			case whole && (r.hdr.GSOType != virtio.GSOTCPv4 || r.hdr.GSOSize != 1000),
				!whole && r.hdr.GSOType != virtio.GSONone,
				summed && r.hdr.Flags != 0:
				t.Errorf("%v: header %+v", g.Features, r.hdr)
			}
			// A checksum is whole if it makes the sum of everything all ones.
			ok := sum(uint32(6+len(f)-34), append(bytes.Clone(f[26:34]), f[34:]...)) == 0xFFFF
			if partial := r.hdr.Flags&virtio.NetHdrFNeedsCSum != 0; ok == partial {
				t.Errorf("%v: header %+v: checksum right: %t", g.Features, r.hdr, ok)
			}
			got = append(got, f[54:]...)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%v: other bytes came than were sent", g.Features)
		}
	}
	session := func(f virtio.Features) *scripted.Guest {
		g := c.Dial(t)
		g.Hello(f)
		watch(g, 0, 1)
		return g
	}
	for range 2 {
		g := session(csum | tso)
		received(g, true, false)
		c.Alive(g)
		for name, on := range features(t) {
			if on && (name == "tx-tcp-segmentation" || name == "tx-tcp6-segmentation" || name == "tx-checksum-ip-generic") {
				t.Errorf("%s is left on", name)
			}
		}

		g = session(0)
		received(g, false, true)
		c.Alive(g)

		g = session(csum)
		received(g, false, false)
		c.Alive(g)
	}

	// Drivers one after the other on one connection, reset in one way or another.
	g := session(csum | tso)
	for i, f := range []virtio.Features{csum | tso, 0, csum, csum | tso, 0} {
		received(g, f.Has(tso), f == 0)
		if i%2 == 0 {
			g.Must(g.ResetDevice())
		} else {
			for q := range 2 {
				_, err := g.GetVringBase(q)
				g.Must(err)
			}
		}
		g.Ring(0).Reset(0)
		g.Ring(1).Reset(0)
		g.Features = scripted.Default | []virtio.Features{0, csum, csum | tso, 0, csum}[i]
		g.Must(g.SetFeatures(g.Features))
		watch(g, 0, 1)
	}
	received(g, false, false)
	c.Alive(g)

	// The driver switches what it accepted off and on, and no more than that.
	g = session(csum | tso | virtio.FeatureCtrlGuestOffloads)
	watch(g, 2)
	set := func(ack uint8, bits uint64) {
		t.Helper()
		expectAck(t, g, 2, ack, virtio.CtrlGuestOffloads, virtio.CtrlGuestOffloadsSet, binary.LittleEndian.AppendUint64(nil, bits)...)
	}
	all := virtio.GuestOffloads(csum | tso)
	received(g, true, false)
	set(virtio.CtrlOK, 0)
	received(g, false, true)
	for _, extra := range []uint64{virtio.GuestOffloads(virtio.FeatureGuestUFO), virtio.GuestOffloads(virtio.FeatureGuestECN), 1, 1 << 40, 1 << 63} {
		set(virtio.CtrlErr, all|extra)
	}
	received(g, false, true)
	set(virtio.CtrlOK, virtio.GuestOffloads(csum))
	received(g, false, false)
	set(virtio.CtrlOK, all)
	received(g, true, false)
	set(virtio.CtrlOK, 0)
	c.Alive(g)
	// What was switched off is on for the next driver that accepts it.
	g = session(csum | tso)
	received(g, true, false)
	c.Alive(g)
}

// features are the TAP's features, as "ethtool -k" shows them.
func features(t *testing.T) map[string]bool {
	t.Helper()
	e, err := ethtool.NewEthtool()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	f, err := e.Features(scripted.TAP)
	if err != nil || len(f) == 0 {
		t.Fatalf("%d features: %v", len(f), err)
	}
	return f
}
