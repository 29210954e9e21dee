package netdev_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/virtio"
)

// TestQueuePairs: VQ_PAIRS_SET decides where frames come in, and the port's idle
// queues are detached.
func TestQueuePairs(t *testing.T) {
	r := newRig(t, netdev.Config{QueuePairs: 3}, driver.Config{QueuePairs: 3})
	active := func(want ...bool) {
		t.Helper()
		for i, w := range want {
			if r.port.isActive(i) != w {
				t.Errorf("port queue %d: active %t", i, !w)
			}
		}
	}
	set := func(n int) {
		t.Helper()
		r.must(r.d.SetQueuePairs(n))
		if s := r.dev.Snapshot(); s.ActiveQueuePairs != n {
			t.Errorf("%d active pairs, want %d", s.ActiveQueuePairs, n)
		}
	}
	set(1)
	active(true, false, false)
	r.port.queues[1].inject(testFrame(9, 60))
	r.port.queues[0].inject(testFrame(8, 60))
	r.receive(0, 1)
	if n := r.queue(2).Packets; n != 0 {
		t.Errorf("%d frames on a pair that is not used", n)
	}
	// Transmission goes on everywhere: what the driver has queued is drained.
	tx := r.d.Pair(2).TX
	r.must(tx.Send(testFrame(7, 60)[virtio.NetHeaderLen:]))
	tx.Flush()
	r.until("a frame of an idle pair is sent", func() bool { return len(r.port.queues[2].sent()) == 1 })

	set(3)
	active(true, true, true)
	if got := r.receive(1, 1)[0]; !bytes.Equal(got, testFrame(9, 60)[virtio.NetHeaderLen:]) {
		t.Error("another frame came")
	}
	set(2)
	active(true, true, false)
	for _, n := range []int{0, 4, 0xffff} {
		if err := r.d.SetQueuePairs(n); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("%d pairs: %v", n, err)
		}
	}
	r.stop()
	active(false, false, false)
}

// TestEnableWithoutControl: a front-end that keeps the control queue to itself
// uses the pairs that it enables.
func TestEnableWithoutControl(t *testing.T) {
	r := newRig(t, netdev.Config{QueuePairs: 2}, driver.Config{QueuePairs: 2})
	// The driver here has a control queue; without its ring the device does not
	// know how many pairs are used.
	_, err := r.d.Frontend().GetVringBase(4)
	r.must(err)
	if s := r.dev.Snapshot(); s.ActiveQueuePairs != 2 {
		t.Fatalf("%d active pairs", s.ActiveQueuePairs)
	}
	r.port.queues[1].inject(testFrame(1, 60))
	r.receive(1, 1)
	r.must(r.d.Frontend().SetVringEnable(2, false))
	if r.port.isActive(1) {
		t.Error("the port's queue is still attached")
	}
}

// TestDisabled: a ring that is started and disabled gets no frames, and eats its
// driver's.
func TestDisabled(t *testing.T) {
	r := newRig(t, netdev.Config{}, driver.Config{})
	fe := r.d.Frontend()
	r.must(fe.SetVringEnable(0, false))
	r.must(fe.SetVringEnable(1, false))
	r.port.queues[0].inject(testFrame(1, 60))
	tx := r.d.Pair(0).TX
	r.must(tx.Send(testFrame(2, 60)[virtio.NetHeaderLen:]))
	tx.Flush()
	r.until("the frame is eaten", func() bool { return r.queue(1).Drops["disabled"] == 1 })
	if n := len(r.port.queues[0].sent()); n != 0 {
		t.Errorf("%d frames were sent", n)
	}
	if n := r.queue(0).Packets; n != 0 {
		t.Errorf("%d frames came in", n)
	}
	r.must(fe.SetVringEnable(0, true))
	r.receive(0, 1)
}

// TestFilter: the receive filter filters.
func TestFilter(t *testing.T) {
	mine := [6]byte{2, 0, 0, 0, 0, 1} // where testFrame sends to
	r := newRig(t, netdev.Config{MAC: mine}, driver.Config{})
	stranger := testFrame(1, 60)
	stranger[virtio.NetHeaderLen+5] = 9
	in := func(f []byte) { r.port.queues[0].inject(f) }
	in(stranger)
	r.receive(0, 1)
	r.must(r.d.SetRXMode(driver.Promiscuous, false))
	in(stranger)
	in(testFrame(2, 60))
	if got := r.receive(0, 1)[0]; got[5] != 1 {
		t.Error("a stranger's frame came in")
	}
	if n := r.queue(0).Drops["filter"]; n != 1 {
		t.Errorf("%d frames filtered", n)
	}
	r.must(r.d.SetMACTable([][6]byte{{2, 0, 0, 0, 0, 9}}, nil))
	in(stranger)
	r.receive(0, 1)
	r.must(r.d.SetMAC([6]byte{2, 0, 0, 0, 0, 7}))
	if s := r.dev.Snapshot(); s.MAC != "02:00:00:00:00:07" || !s.Filter.Configured || len(s.Filter.Unicast) != 1 {
		t.Errorf("%s, %+v", s.MAC, s.Filter)
	}
	in(testFrame(3, 60)) // to the old address
	in(stranger)
	if got := r.receive(0, 1)[0]; got[5] != 9 {
		t.Error("the old address is still served")
	}
	// A reset forgets it all.
	r.stop()
	r.drive(driver.Config{})
	in(testFrame(4, 60))
	r.receive(0, 1)
	if r.d.MAC() != mine {
		t.Errorf("address %x after a reset", r.d.MAC())
	}
}

// TestAnnounce: SEND_RARP asks a driver that can to announce itself, and sends a
// frame for one that cannot.
func TestAnnounce(t *testing.T) {
	r := newRig(t, netdev.Config{}, driver.Config{})
	fe := r.d.Frontend()
	status := func() byte {
		b, err := fe.GetConfig(6, 2)
		r.must(err)
		return b[0]
	}
	r.must(fe.SendRARP([6]byte{2, 3}))
	if status() != virtio.NetStatusLinkUp|virtio.NetStatusAnnounce {
		t.Errorf("status %#x", status())
	}
	r.must(r.d.AckAnnounce())
	if status() != virtio.NetStatusLinkUp {
		t.Errorf("status %#x after the acknowledgement", status())
	}
	if f := r.dev.Snapshot().FrontEnd; f.Requests["SEND_RARP"] != 1 || f.Refused != 0 {
		t.Errorf("%+v", f)
	}
	r.stop()
	r.drive(driver.Config{Without: virtio.FeatureGuestAnnounce})
	r.must(r.d.Frontend().SendRARP([6]byte{2, 3}))
	out := r.port.queues[0].sent()
	if len(out) != 1 || len(out[0]) != virtio.NetHeaderLen+60 || !bytes.Equal(out[0][12:26], []byte{
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 3, 0, 0, 0, 0, 0x80, 0x35,
	}) {
		t.Errorf("sent % x", out)
	}
}
