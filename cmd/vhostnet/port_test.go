package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/driver"
)

// one sends a frame from one guest and receives it at another.
func one(t *testing.T, from, to *driver.Driver, dst, src byte) {
	t.Helper()
	frame := make([]byte, 60)
	copy(frame, []byte{2, 0, 0, 0, 0, dst, 2, 0, 0, 0, 0, src, 0x88, 0xb5, 1, 2, 3})
	if err := from.Pair(0).TX.Send(frame); err != nil {
		t.Fatal(err)
	}
	from.Pair(0).TX.Flush()
	rx := to.Pair(0).RX
	if ok, err := rx.Wait(hangs); err != nil || !ok {
		t.Fatal("no frame:", err)
	}
	var p [1]driver.Packet
	if rx.Receive(p[:]) != 1 || !bytes.Equal(p[0].Frame(), frame) {
		t.Fatal("another frame")
	}
	rx.Recycle()
	from.Pair(0).TX.Reclaim()
}

// Two devices of a process meet at a switch by its name; one of them is exchanged
// while the other one stays.
func TestSwitchOfAProcess(t *testing.T) {
	s := newSite(t)
	s.reload(inForce, 2, s.table("a", `port = "switch:lan"`), s.table("b", `port = "switch:lan"`), s.table("c", `port = "switch:other"`))
	a, c := guest(t, s.path("a"), driver.Config{}), guest(t, s.path("c"), driver.Config{})
	b := guest(t, s.path("b"), driver.Config{})
	one(t, a, b, 2, 1)
	one(t, b, a, 1, 2)
	s.reload(inForce, 3, s.table("a", `port = "switch:lan"`), s.table("b", `port = "switch:lan"`, "mtu = 1400"), s.table("c", `port = "switch:other"`))
	_ = b.Close() // its device is gone
	b = guest(t, s.path("b"), driver.Config{})
	one(t, a, b, 2, 1) // to who is not known any more
	one(t, b, a, 1, 2)
	d, err := s.api.Device(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if d.Port != "switch:lan" || d.PortKind != "switch" || d.PortCounters["flooded"] != 2 || d.PortCounters["addresses"] != 1 {
		t.Errorf("%s, %v", d.Port, d.PortCounters)
	}
	if d, err = s.api.Device(t.Context(), "c"); err != nil || d.Queues[0].Packets != 0 {
		t.Errorf("another switch's port got %d frames, %v", d.Queues[0].Packets, err)
	}
	for _, d := range []*driver.Driver{a, b, c} {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	s.end(syscall.SIGTERM, s.path("a"), s.path("b"), s.path("c"))
}

// What one guest sends goes to a file, out of which another one receives it.
func TestCapture(t *testing.T) {
	s := newSite(t)
	file := filepath.Join(t.TempDir(), "a.pcap")
	s.reload(inForce, 2, s.table("a", `port = "pcap:record=`+file+`"`))
	a := guest(t, s.path("a"), driver.Config{})
	var sent [][]byte
	tx := a.Pair(0).TX
	for i := range 40 {
		frame := bytes.Repeat([]byte{byte(i)}, 60+30*i)
		sent = append(sent, frame)
		if err := tx.Send(frame); err != nil {
			t.Fatal(err)
		}
	}
	tx.Flush()
	for end := time.Now().Add(hangs); s.recorded("a") < uint64(len(sent)); {
		if time.Now().After(end) {
			t.Fatal("not recorded")
		}
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	s.reload(inForce, 3, s.table("b", `port = "pcap:replay=`+file+`"`))
	b := guest(t, s.path("b"), driver.Config{})
	rx := b.Pair(0).RX
	for len(sent) > 0 {
		var p [1]driver.Packet
		if rx.Receive(p[:]) == 0 {
			if ok, err := rx.Wait(hangs); err != nil || !ok {
				t.Fatal("no frame:", err)
			}
			continue
		}
		if !bytes.Equal(p[0].Frame(), sent[0]) {
			t.Fatalf("another frame: % x", p[0].Frame())
		}
		sent = sent[1:]
		rx.Recycle()
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	s.end(syscall.SIGTERM, s.path("b"))
}

// recorded is what a device's port has recorded.
func (s *site) recorded(name string) uint64 {
	d, err := s.api.Device(s.t.Context(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	return d.PortCounters["recorded"]
}

// A TAP that the parent has opened.
func TestTAPDescriptor(t *testing.T) {
	isolate(t)
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "tap")
	defer func() { _ = f.Close() }()
	ifr, err := unix.NewIfreq("vn8")
	if err != nil {
		t.Fatal(err)
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		t.Fatal(err)
	}
	path := socket(t)
	for _, c := range []struct {
		port, want string
		code       int
	}{
		{"tap-fd:3,4", "a descriptor for each", exitUsage},
		{"tap-fd:x", "open descriptors", exitUsage},
		{"tap-fd:9999", "bad file descriptor", exitFailed}, // not even one that the test inherited
		{"af-packet:nobody", "no such interface", exitFailed},
		{"pcap:replay=/nowhere", "no such file", exitFailed},
	} {
		code, text := failure(t, []*os.File{f}, "--socket-path", path, "--port", c.port, "--log-level=error")
		if code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%s: exit code %d: %s", c.port, code, text)
		}
	}
	p := launch(t, prepare(t, []*os.File{f}, "--socket-path", path, "--port=tap-fd:3"))
	p.await(listening, 1)
	link, err := netlink.LinkByName("vn8")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	d := guest(t, path, driver.Config{})
	// Setting it up makes the host send something (IPv6, if there is any), so it is
	// frames towards the host that are counted.
	before := link.Attrs().Statistics.RxPackets
	frame := make([]byte, 60)
	copy(frame, []byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 0x88, 0xb5})
	if err := d.Pair(0).TX.Send(frame); err != nil {
		t.Fatal(err)
	}
	d.Pair(0).TX.Flush()
	if ok, err := d.Pair(0).TX.Wait(hangs); err != nil || !ok {
		t.Fatal("not sent:", err)
	}
	if link, err = netlink.LinkByName("vn8"); err != nil || link.Attrs().Statistics.RxPackets != before+1 {
		t.Errorf("the host has %d frames more, %v", link.Attrs().Statistics.RxPackets-before, err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	p.end(syscall.SIGTERM, path)
}
