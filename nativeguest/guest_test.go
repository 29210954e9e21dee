package nativeguest

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
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/tap"
	"github.com/vhostnet/vhostnet/vhostuser"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	hostAddress  = "10.78.0.1"
	guestAddress = "10.78.0.2"
	// patience bounds waits; it is no measurement.
	patience = 30 * time.Second
)

// space is a network namespace.
type space struct{ ns netns.NsHandle }

func newSpace(t *testing.T) *space {
	t.Helper()
	s := &space{}
	if err := inThread(func() (err error) { s.ns, err = netns.New(); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.ns.Close() })
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

// openTAP makes a TAP with an address in the namespace.
func (s *space) openTAP(t *testing.T, address string) *tap.Port {
	t.Helper()
	var p *tap.Port
	s.do(t, func() (err error) {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
		if p, err = tap.Open("vn0", tap.Options{CreateIfMissing: true}); err != nil {
			return err
		}
		link, err := netlink.LinkByName("vn0")
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(address + "/24")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(link, a)
	})
	return p
}

// rig is a device with a TAP on each side.
type rig struct {
	host, inside *space
	dev          *netdev.Device
	g            *Guest
}

func newRig(t *testing.T, dc netdev.Config, c Config) *rig {
	t.Helper()
	r := &rig{host: newSpace(t), inside: newSpace(t)}
	dev, err := netdev.New(dc, r.host.openTAP(t, hostAddress))
	if err != nil {
		t.Fatal(err)
	}
	r.dev = dev
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	front, back := unixConn(t, fds[0]), unixConn(t, fds[1])
	served := make(chan error, 1)
	go func() { served <- vhostuser.Serve(context.WithoutCancel(t.Context()), back, dev, vhostuser.Options{}) }()
	d, err := driver.New(front, driver.Config{Features: Features, RXBufferSize: BufferSize, TXBufferSize: BufferSize})
	if err != nil {
		t.Fatal(err)
	}
	port := r.inside.openTAP(t, guestAddress)
	if r.g, err = New(d, port, c); err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- r.g.Run() }()
	t.Cleanup(func() {
		r.g.Stop()
		if err := errors.Join(<-ran, r.g.Close(), d.Close(), <-served, dev.Close(), port.Close()); err != nil {
			t.Error(err)
		}
	})
	return r
}

func unixConn(t *testing.T, fd int) *net.UnixConn {
	t.Helper()
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.UnixConn)
}

// tcp connects the namespaces; the first connection is the guest's end.
func (r *rig) tcp(t *testing.T) (inside, host *net.TCPConn) {
	t.Helper()
	var l net.Listener
	r.host.do(t, func() (err error) { l, err = net.Listen("tcp4", hostAddress+":0"); return err })
	defer l.Close()
	r.inside.do(t, func() error {
		c, err := net.DialTimeout("tcp4", l.Addr().String(), patience)
		if err == nil {
			inside = c.(*net.TCPConn)
		}
		return err
	})
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	host = c.(*net.TCPConn)
	for _, c := range []*net.TCPConn{inside, host} {
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	return inside, host
}

// move sends n bytes and checks that they arrive as they were.
func move(t *testing.T, from, to *net.TCPConn, n int) {
	t.Helper()
	data := bytes.Repeat([]byte("0123456789abcdef<>"), n/18+1)[:n]
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write(data)
		sent <- errors.Join(err, from.CloseWrite())
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

// TestTCP: a kernel's TCP runs over the device in both directions, with every
// engine, with and without NAPI transmission.
func TestTCP(t *testing.T) {
	for _, engine := range []string{"off", "fixed:100/32", "net-dim", "adaptive"} {
		for _, orphan := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/orphan=%v", engine, orphan), func(t *testing.T) {
				var dc netdev.Config
				for _, d := range []coalesce.Direction{coalesce.RX, coalesce.TX} {
					s, err := coalesce.ParseEngine(engine, d)
					if err != nil {
						t.Fatal(err)
					}
					if d == coalesce.RX {
						dc.RXModeration = s
					} else {
						dc.TXModeration = s
					}
				}
				r := newRig(t, dc, Config{CPU: -1, Orphan: orphan, InterruptCost: time.Microsecond})
				inside, host := r.tcp(t)
				move(t, inside, host, 8<<20)
				move(t, host, inside, 8<<20)
				c := r.g.Counters()
				if c.RXInterrupts == 0 || c.Polls < c.RXInterrupts {
					t.Errorf("%+v", c)
				}
				rx, tx := r.g.d.Counters()
				if rx.Notifications < c.RXInterrupts || tx.Notifications < c.TXInterrupts {
					t.Errorf("%d and %d notifications, %+v", rx.Notifications, tx.Notifications, c)
				}
				if err := errors.Join(r.g.pair.RX.Err(), r.g.pair.TX.Err()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestPingPong: a single byte there and back, often. Every lost wake-up would
// cost the patience of the connection.
func TestPingPong(t *testing.T) {
	r := newRig(t, netdev.Config{}, Config{CPU: -1})
	inside, host := r.tcp(t)
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(host, host)
		done <- err
	}()
	b := []byte{0}
	for i := range 2000 {
		b[0] = byte(i)
		if _, err := inside.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(inside, b); err != nil || b[0] != byte(i) {
			t.Fatalf("round %d: %d, %v", i, b[0], err)
		}
	}
	if err := inside.CloseWrite(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestAdaptive: the guest's own moderation sets limits at the device while
// traffic flows, and takes them back.
func TestAdaptive(t *testing.T) {
	r := newRig(t, netdev.Config{}, Config{CPU: -1})
	limits := func() netdev.LimitsSnapshot { return r.dev.Snapshot().Queues[0].Coalesce.Guest }
	if err := r.g.SetAdaptive(true); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); r.g.Counters().Commands == 0; {
		if time.Now().After(end) {
			t.Fatalf("no command: %+v", r.g.Counters())
		}
		inside, host := r.tcp(t)
		move(t, host, inside, 4<<20)
	}
	if l := limits(); l.Packets != 256 {
		t.Errorf("limits %+v", l)
	}
	if err := r.g.SetAdaptive(false); err != nil {
		t.Fatal(err)
	}
	if l := limits(); l != (netdev.LimitsSnapshot{}) {
		t.Errorf("limits %+v after it was switched off", l)
	}
	if c := r.g.Counters(); c.CommandErrors != 0 {
		t.Errorf("%+v", c)
	}
}
