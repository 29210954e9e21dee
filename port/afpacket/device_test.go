package afpacket_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/internal/unixsock"
	"github.com/vhostnet/vhostnet/nativeguest"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/port/afpacket"
	"github.com/vhostnet/vhostnet/tap"
	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

const (
	hostAddress  = "10.79.0.1"
	guestAddress = "10.79.0.2"
	// patience bounds waits; it is no measurement.
	patience = 30 * time.Second
)

type space struct{ ns netns.NsHandle }

func newSpace(t *testing.T) *space {
	t.Helper()
	s := &space{}
	if err := inThread(func() (err error) { s.ns, err = netns.New(); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.ns.Close() })
	s.do(t, func() error {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
		return nil
	})
	return s
}

func inThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends
		done <- f()
	}()
	return <-done
}

func (s *space) do(t *testing.T, f func() error) {
	t.Helper()
	if err := inThread(func() error { return errors.Join(netns.Set(s.ns), f()) }); err != nil {
		t.Fatal(err)
	}
}

func address(name, a string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	parsed, err := netlink.ParseAddr(a + "/24")
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(link, parsed), netlink.LinkSetUp(link))
}

// rig is a device on one end of a veth pair, whose other end is the host's, with a
// driver.
type rig struct {
	host *space
	dev  *netdev.Device
	d    *driver.Driver
}

func newRig(t *testing.T, pairs int, features virtio.Features) *rig {
	t.Helper()
	r := &rig{host: newSpace(t)}
	var p *afpacket.Port
	r.host.do(t, func() (err error) {
		a := netlink.NewLinkAttrs()
		a.Name = "near"
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "far"}); err != nil {
			return err
		}
		near, err := netlink.LinkByName("near")
		if err != nil {
			return err
		}
		if err := errors.Join(address("far", hostAddress), netlink.LinkSetUp(near)); err != nil {
			return err
		}
		p, err = afpacket.Open("near", afpacket.Options{Queues: pairs})
		return err
	})
	var err error
	if r.dev, err = netdev.New(netdev.Config{QueuePairs: pairs}, p); err != nil {
		t.Fatal(err)
	}
	front, back, err := unixsock.Pair()
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		served <- vhostuser.Serve(context.WithoutCancel(t.Context()), back, r.dev, vhostuser.Options{})
	}()
	r.d, err = driver.New(front, driver.Config{
		Features: features, QueuePairs: pairs,
		RXBufferSize: nativeguest.BufferSize, TXBufferSize: nativeguest.BufferSize,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(r.d.Close(), <-served, r.dev.Close()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// TestTCP: a guest's TCP and the host's over the veth, with everything left undone
// that can be, and with nothing: then the port cuts what the host has not.
func TestTCP(t *testing.T) {
	for name, f := range map[string]virtio.Features{
		"offloads":    nativeguest.Features,
		"checksums":   driver.DefaultFeatures | virtio.FeatureCSum | virtio.FeatureGuestCSum,
		"no offloads": driver.DefaultFeatures,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1, f)
			guest := newSpace(t)
			var inside *tap.Port
			guest.do(t, func() (err error) {
				if inside, err = tap.Open("vn0", tap.Options{CreateIfMissing: true}); err != nil {
					return err
				}
				return address("vn0", guestAddress)
			})
			g, err := nativeguest.New(r.d, inside, nativeguest.Config{CPU: -1})
			if err != nil {
				t.Fatal(err)
			}
			ran := make(chan error, 1)
			go func() { ran <- g.Run() }()
			t.Cleanup(func() {
				g.Stop()
				if err := errors.Join(<-ran, g.Close(), inside.Close()); err != nil {
					t.Error(err)
				}
			})
			var l net.Listener
			r.host.do(t, func() (err error) { l, err = net.Listen("tcp4", hostAddress+":0"); return err })
			defer l.Close()
			var a net.Conn
			guest.do(t, func() (err error) { a, err = net.DialTimeout("tcp4", l.Addr().String(), patience); return err })
			defer a.Close()
			b, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			for _, c := range []net.Conn{a, b} {
				if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
					t.Fatal(err)
				}
			}
			const n = 8 << 20
			move(t, a, b, n)
			move(t, b, a, n)
			s := r.dev.Snapshot()
			c := s.PortCounters
			if c["rx_bad_offload"]+c["rx_refused"]+c["tx_refused"]+c["tx_too_long"] != 0 {
				t.Error(c)
			}
			if whole := name == "offloads"; whole != (c["rx_segmented"] == 0) {
				t.Error(c)
			}
			// Frames of the usual size would be more than these.
			if tx := s.Counters["tx_packets"]; name == "offloads" && tx > n/1448/2 {
				t.Errorf("%d frames sent: there was no segmentation offload", tx)
			}
		})
	}
}

// move sends n bytes and checks that they arrive as they were.
func move(t *testing.T, from, to net.Conn, n int) {
	t.Helper()
	data := bytes.Repeat([]byte("0123456789abcdef<>"), n/18+1)[:n]
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write(data)
		sent <- errors.Join(err, from.(*net.TCPConn).CloseWrite())
	}()
	h := sha256.New()
	got, err := io.Copy(h, to)
	if err := errors.Join(err, <-sent); err != nil || got != int64(n) {
		t.Fatalf("%d bytes of %d: %v", got, n, err)
	}
	if want := sha256.Sum256(data); !bytes.Equal(h.Sum(nil), want[:]) {
		t.Fatal("the bytes are not those that were sent")
	}
}

// TestDevice: frames of a driver with several pairs reach a peer behind the veth and
// those of the peer the driver; a link that goes and comes back is seen in the
// status, and nothing else of the device is touched.
func TestDevice(t *testing.T) {
	const pairs = 2
	r := newRig(t, pairs, driver.DefaultFeatures)
	var far *afpacket.Port
	r.host.do(t, func() (err error) { far, err = afpacket.Open("far", afpacket.Options{}); return err })
	defer far.Close()
	if err := r.d.SetQueuePairs(pairs); err != nil {
		t.Fatal(err)
	}
	both := func() {
		t.Helper()
		for pair := range pairs {
			frame := make([]byte, 100)
			copy(frame, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5, byte(pair)})
			room := make([]byte, 70000)
			tx := r.d.Pair(pair).TX
			got := 0
			for end := time.Now().Add(patience); got == 0; {
				// The link may have no carrier yet.
				if time.Now().After(end) {
					t.Fatalf("pair %d: nothing comes out", pair)
				}
				tx.Reclaim()
				if err := tx.Send(frame); err != nil {
					t.Fatal(err)
				}
				tx.Flush()
				if _, err := tx.Wait(patience); err != nil {
					t.Fatal(err)
				}
				got, _ = far.Queue(0).Recv([][]byte{room})
			}
			if !bytes.Equal(room[12:got], frame) {
				t.Fatalf("pair %d: % x", pair, room[:got])
			}
		}
		frame := append(make([]byte, 12), 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5)
		frame = append(frame, make([]byte, 86)...)
		rx := r.d.Pair(0).RX
		for end, ok := time.Now().Add(patience), false; !ok; {
			if time.Now().After(end) {
				t.Fatal("nothing comes in")
			}
			_ = far.Queue(0).Send([][]byte{frame}) // again, for the same reason
			var err error
			if ok, err = rx.Wait(patience / 1000); err != nil {
				t.Fatal(err)
			}
		}
		var p [1]driver.Packet
		if rx.Receive(p[:]) != 1 || !bytes.Equal(p[0].Frame(), frame[12:]) {
			t.Fatal("another frame")
		}
		rx.Recycle()
	}
	state := func(want string) {
		t.Helper()
		if s := r.dev.Snapshot(); s.State != want || (want == netdev.StateFailed) != (s.Error != "") {
			t.Errorf("state %q, %q, want %q", s.State, s.Error, want)
		}
	}
	link := func(f func(netlink.Link) error) {
		t.Helper()
		r.host.do(t, func() error {
			l, err := netlink.LinkByName("near")
			if err != nil {
				return fmt.Errorf("near: %w", err)
			}
			return f(l)
		})
	}
	both()
	state(netdev.StateServing)
	link(netlink.LinkSetDown)
	state(netdev.StateServing) // the link's state is the driver's to know
	link(netlink.LinkSetUp)
	state(netdev.StateServing)
	both()
	link(netlink.LinkDel)
	state(netdev.StateFailed)
	if r.d.Broken() {
		t.Error("a ring is broken")
	}
	if err := r.d.SetQueuePairs(1); err != nil {
		t.Error("the control queue:", err)
	}
}
