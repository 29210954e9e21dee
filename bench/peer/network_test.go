package peer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// openTAP makes a TAP in a network and returns its end.
func openTAP(t *testing.T, n *Network, name string) *os.File {
	t.Helper()
	var f *os.File
	err := inThread(func() error {
		if err := netns.Set(n.handle); err != nil {
			return err
		}
		tap := &netlink.Tuntap{
			LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TAP,
			Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_ONE_QUEUE, Queues: 1, NonPersist: true,
		}
		if err := netlink.LinkAdd(tap); err != nil {
			return err
		}
		f = tap.Fds[0]
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func newNetwork(t *testing.T) *Network {
	t.Helper()
	n, err := NewNetwork()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// datagram is a frame from the guest to the host.
func datagram() []byte {
	f := make([]byte, 60)
	for i, s := range []string{HostMAC, GuestMAC} {
		mac, _ := net.ParseMAC(s)
		copy(f[6*i:], mac)
	}
	be := binary.BigEndian
	be.PutUint16(f[12:], 0x0800)
	copy(f[14:], []byte{0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0})
	copy(f[26:], net.ParseIP(GuestIP).To4())
	copy(f[30:], net.ParseIP(HostIP).To4())
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(be.Uint16(f[i:]))
	}
	be.PutUint16(f[24:], ^uint16(sum+sum>>16))
	be.PutUint16(f[34:], GuestPort)
	be.PutUint16(f[36:], HostPort)
	be.PutUint16(f[38:], 26)
	return f
}

// TestNetwork: the guest's packets arrive and are counted, also when nobody reads
// them.
func TestNetwork(t *testing.T) {
	n := newNetwork(t)
	tap := openTAP(t, n, "t0")
	if err := n.Guest("t0", false); err != nil {
		t.Fatal(err)
	}
	const first, sent = 100, 500 // the buffer takes fewer than the first
	total := func() uint64 {
		d, err := n.Datagrams()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for range first + sent {
		if _, err := tap.Write(datagram()); err != nil {
			t.Fatal(err)
		}
	}
	// Where the kernel defers some of it, it takes a moment.
	for end := time.Now().Add(patience); total() < sent; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d datagrams, want more than %d", total(), sent)
		}
	}
	if total() > first+sent {
		t.Errorf("%d datagrams of %d", total(), first+sent)
	}
}

// TestReflect: what the guest sends comes back to it as it was.
func TestReflect(t *testing.T) {
	n := newNetwork(t)
	tap := openTAP(t, n, "t0")
	if err := n.Guest("t0", true); err != nil {
		t.Fatal(err)
	}
	want := datagram()
	if _, err := tap.Write(want); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2048)
	k, err := tap.Read(b)
	if err != nil || !bytes.Equal(b[:k], want) {
		t.Errorf("%x, %v", b[:k], err)
	}
	if err := n.Guest("t0", true); err == nil {
		t.Error("a second filter was accepted")
	}
}

func TestDatagrams(t *testing.T) {
	const names = "Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors\n"
	if n, err := datagrams("Ip: Forwarding\nIp: 1\n" + names + "Udp: 5 1 7 3 7\nUdpLite: InDatagrams\n"); n != 12 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for _, bad := range []string{"", names, names + "Udp: 1\n", names + "Udp: x 1 7 3 7\n", "Udp: InDatagrams\nUdp: 1\n"} {
		if _, err := datagrams(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	var none *Network
	if err := errors.Join(none.Close()); err != nil {
		t.Error(err)
	}
}
