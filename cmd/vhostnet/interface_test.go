package main

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/vhostnet/vhostnet/driver"
)

// veth makes a pair of interfaces that are up.
func veth(t *testing.T) {
	t.Helper()
	// The kernel would send neighbour discovery of its own.
	err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "near"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "far"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"near", "far"} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			t.Fatal(err)
		}
	}
}

// passes sends frames until one comes out at the other end: the first ones can be lost
// while the kernel activates an interface.
func passes(t *testing.T, from, to *driver.Driver, mark byte) {
	t.Helper()
	frame := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5}, bytes.Repeat([]byte{mark}, 46)...)
	rx, tx := to.Pair(0).RX, from.Pair(0).TX
	for end := time.Now().Add(hangs); ; {
		if err := tx.Send(frame); err != nil {
			t.Fatal(err)
		}
		tx.Flush()
		var p [1]driver.Packet
		if _, err := rx.Wait(100 * time.Millisecond); err != nil {
			t.Fatal(err)
		}
		for rx.Receive(p[:]) == 1 {
			if bytes.Equal(p[0].Frame(), frame) {
				return
			}
		}
		tx.Reclaim()
		if time.Now().After(end) {
			t.Fatal("no frame comes through")
		}
	}
}

// Devices whose interfaces are removed fail, and SIGHUP opens them again on those that
// have their names by then; another device goes on meanwhile.
func TestReloadOpensInterfaces(t *testing.T) {
	isolate(t)
	veth(t)
	dir := t.TempDir()
	tables := []string{
		table(dir, "a", `port = "af-packet:near"`), table(dir, "b", `port = "af-packet:far"`), table(dir, "other", `port = "echo"`),
	}
	s := newSite(t, tables...)
	s.dir = dir
	other := guest(t, s.path("other"), driver.Config{})
	for round := range 3 {
		for name, state := range s.states() {
			if state != "serving" {
				t.Fatalf("round %d: %s is %s", round, name, state)
			}
		}
		a, b := guest(t, s.path("a"), driver.Config{}), guest(t, s.path("b"), driver.Config{})
		passes(t, a, b, byte(2*round))
		passes(t, b, a, byte(2*round+1))
		link, err := netlink.LinkByName("near")
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkDel(link); err != nil { // the other end goes with it
			t.Fatal(err)
		}
		gone := func(state string) bool {
			return strings.HasPrefix(state, "failed port: ") && strings.Contains(state, "gone")
		}
		for end, states := time.Now().Add(hangs), s.states(); !gone(states["a"]) || !gone(states["b"]); states = s.states() {
			if time.Now().After(end) {
				t.Fatalf("round %d: %v", round, states)
			}
		}
		echoes(t, other, 3)
		// Without its interface the device cannot be opened; the others are left alone.
		s.reload("afpacket: open near: ", round+1, tables...)
		s.await(inForce, 2*round+2)
		veth(t)
		s.reload(inForce, 2*round+3, tables...)
		_, _ = a.Close(), b.Close() // their devices were opened again
		echoes(t, other, 3)
	}
	if d, err := s.api.Device(t.Context(), "other"); err != nil || d.FrontEnd.Connections != 1 {
		t.Errorf("%d connections, %v", d.FrontEnd.Connections, err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	s.end(syscall.SIGTERM, s.path("a"), s.path("b"), s.path("other"))
}
