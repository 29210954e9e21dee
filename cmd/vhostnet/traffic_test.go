package main

import (
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/mgmt"
	"github.com/vhostnet/vhostnet/netdev"
)

// guest connects an embedded guest to the process's socket. It dials until it
// is served, as reconnect does.
func guest(t *testing.T, path string, cfg driver.Config) *driver.Driver {
	t.Helper()
	d, err := driver.New(reconnect(t, path), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// receive takes n frames from a queue.
func receive(t *testing.T, rx *driver.RX, n int) {
	t.Helper()
	packets := make([]driver.Packet, 64)
	for n > 0 {
		ok, err := rx.Wait(hangs)
		if err != nil || !ok {
			t.Fatalf("%d frames are missing: %v", n, err)
		}
		n -= rx.Receive(packets)
	}
	rx.Recycle()
	if err := rx.Err(); err != nil {
		t.Fatal(err)
	}
}

// Under load, with a guest that coalesces, SIGTERM and SIGKILL end the process;
// after either the next one serves the same path.
func TestEndUnderLoad(t *testing.T) {
	path := socket(t)
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL, syscall.SIGINT} {
		p := spawn(t, "--socket-path", path, "--port=source:1500", "--queue-pairs=2", "--rx-coalesce=64/64")
		p.await(listening, 1)
		d := guest(t, path, driver.Config{QueuePairs: 2})
		if err := d.SetRXCoalesce(100, 32); err != nil {
			t.Fatal(err)
		}
		receive(t, d.Pair(0).RX, 5000)
		receive(t, d.Pair(1).RX, 5000)
		if sig == syscall.SIGKILL {
			if err := p.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			p.code()
		} else {
			p.end(sig, path)
		}
		_ = d.Close() // its device is gone
	}
}

// What the guest does on its queues is what the status API counts and reports.
func TestStatusOfTraffic(t *testing.T) {
	path := socket(t)
	api := "unix:" + filepath.Join(filepath.Dir(path), "api")
	p := spawn(t, "--socket-path", path, "--port=echo", "--queue-pairs=2", "--queue-size=256", "--mac=02:00:00:00:00:07",
		"--mtu=1400", "--api", api, "--tx-coalesce=50/16")
	p.await(listening, 1)
	d := guest(t, path, driver.Config{QueuePairs: 2})
	if d.MAC() != [6]byte{2, 0, 0, 0, 0, 7} || d.MTU() != 1400 {
		t.Errorf("the guest sees MAC %x, MTU %d", d.MAC(), d.MTU())
	}
	if err := d.SetRXCoalesce(64, 8); err != nil {
		t.Fatal(err)
	}
	if err := d.SetVQCoalesce(2, 200, 4); err != nil {
		t.Fatal(err)
	}
	const frames, size = 100, 60
	pair := d.Pair(1)
	frame := make([]byte, size)
	mac := d.MAC()
	copy(frame, []byte{2, 0, 0, 0, 0, 1})
	copy(frame[6:], mac[:])
	copy(frame[12:], []byte{0x88, 0xb5})
	for range frames {
		if err := pair.TX.Send(frame); err != nil {
			t.Fatal(err)
		}
	}
	pair.TX.Flush()
	receive(t, pair.RX, frames)

	c, err := mgmt.Dial(t.Context(), api)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := c.Device(t.Context(), "net0")
	if err != nil {
		t.Fatal(err)
	}
	if !s.FrontEnd.Connected || s.FrontEnd.MemoryRegions == 0 || s.ActiveQueuePairs != 2 || s.MTU != 1400 ||
		s.MAC != "02:00:00:00:00:07" || !slices.Contains(s.NegotiatedFeatures, "VIRTIO_NET_F_VQ_NOTF_COAL") {
		t.Errorf("%+v", s)
	}
	if s.Control.Err != 0 || s.Control.Commands["NOTF_COAL/RX_SET"] != 1 || s.Control.Commands["NOTF_COAL/VQ_SET"] != 1 {
		t.Errorf("control %+v", s.Control)
	}
	for i, want := range []struct {
		kind             string
		packets          uint64
		guest, host, eff netdev.LimitsSnapshot
	}{
		{"rx", 0, lim(64, 8), lim(0, 0), lim(64, 8)},
		{"tx", 0, lim(0, 0), lim(50, 16), lim(50, 16)},
		{"rx", frames, lim(200, 4), lim(0, 0), lim(200, 4)},
		{"tx", frames, lim(0, 0), lim(50, 16), lim(50, 16)},
	} {
		q := s.Queues[i]
		if q.Index != i || q.Kind != want.kind || q.Packets != want.packets || q.Bytes < want.packets*size || !q.Started || !q.Enabled {
			t.Errorf("queue %d: %+v", i, q)
		}
		if q.Coalesce.Guest != want.guest || q.Coalesce.Host != want.host || q.Coalesce.Effective != want.eff {
			t.Errorf("queue %d: limits %+v, want guest %v, host %v, effective %v", i, q.Coalesce, want.guest, want.host, want.eff)
		}
	}
	if rx := s.Queues[2]; rx.Calls == 0 || rx.Calls+rx.CallsSuppressed > frames {
		t.Errorf("%d calls, %d suppressed for %d frames", rx.Calls, rx.CallsSuppressed, frames)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	p.await("front-end disconnected", 1)
	p.end(syscall.SIGTERM, path)
}

func lim(usecs, packets uint32) netdev.LimitsSnapshot {
	return netdev.LimitsSnapshot{Usecs: usecs, Packets: packets}
}

// Guests that come under traffic and go at once, or whose monitor dies, leave
// no descriptor and no mapping behind.
func TestManyGuests(t *testing.T) {
	path := socket(t)
	p := spawn(t, "--socket-path", path, "--port=source:64", "--queue-pairs=2")
	p.await(listening, 1)
	base := 0
	for i := range 60 {
		c := reconnect(t, path) // the session before has ended
		if n := p.mapped(); n != 0 {
			t.Fatalf("%d mappings of guest memory are left in round %d", n, i)
		}
		if n := p.fds(); i == 0 {
			base = n
		} else if n != base {
			t.Fatalf("%d descriptors in round %d, %d in the first", n, i, base)
		}
		d, err := driver.New(c, driver.Config{QueuePairs: 1 + i%2, MemRegions: 1 + i%8})
		if err != nil {
			t.Fatal(err)
		}
		if i%3 != 0 {
			receive(t, d.Pair(0).RX, 100)
		}
		if p.mapped() == 0 {
			t.Fatal("no guest memory is mapped: the test looks for the wrong thing")
		}
		if i%2 == 0 {
			_ = c.Close() // the monitor dies
		}
		if err := d.Close(); err != nil && i%2 != 0 {
			t.Error(err)
		}
	}
	p.end(syscall.SIGTERM, path)
}
