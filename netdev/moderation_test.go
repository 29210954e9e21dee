package netdev_test

import (
	"errors"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/virtio"
)

const (
	never  = 60_000_000 // us: longer than any test
	second = 1_000_000
)

// arrive injects n frames and waits until they are in the ring. Nothing is
// received, so the driver's event index stays where it was.
func (r *rig) arrive(n int) {
	before := r.queue(0).Packets
	for range n {
		r.port.queues[0].inject(testFrame(0, 60))
	}
	r.until("the frames are in the ring", func() bool { return r.queue(0).Packets == before+uint64(n) })
}

// decided returns how often a queue came to a decision about a notification.
func (r *rig) decided(queue int) (n uint64) {
	for _, v := range r.queue(queue).CallReasons {
		n += v
	}
	return n
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// TestLimitsInForce covers reference cases M01 and M04 (1) and (2) at the ring.
func TestLimitsInForce(t *testing.T) {
	t.Run("the packet limit fires", func(t *testing.T) {
		r := newRig(t, netdev.Config{}, driver.Config{})
		r.must(r.d.SetRXCoalesce(never, 64))
		base := r.decided(0)
		r.arrive(63)
		if n := r.decided(0); n != base {
			t.Fatalf("%d decisions before the limit", n-base)
		}
		r.arrive(1)
		r.until("the limit fires", func() bool { return r.queue(0).CallReasons["packets"] == 1 })
	})
	t.Run("the time limit fires once, without further traffic", func(t *testing.T) {
		r := newRig(t, netdev.Config{}, driver.Config{})
		r.must(r.d.SetRXCoalesce(2000, 64))
		r.arrive(3)
		r.until("the time limit fires", func() bool { return r.queue(0).CallReasons["timeout"] >= 1 })
		if _, err := r.d.Pair(0).RX.Wait(patience); err != nil {
			t.Fatal(err)
		}
		if got := r.receive(0, 3); len(got) != 3 {
			t.Fatal("frames are missing")
		}
	})
	for _, l := range []coalesce.Limits{{}, {Usecs: 0, Packets: 16}, {Usecs: never}, {Usecs: never, Packets: 1}} {
		t.Run("every packet: "+l.String(), func(t *testing.T) {
			r := newRig(t, netdev.Config{}, driver.Config{})
			r.must(r.d.SetRXCoalesce(l.Usecs, l.Packets))
			for want := uint64(1); want < 4; want++ {
				r.arrive(1)
				r.until("it fires", func() bool { return r.queue(0).CallReasons["every_packet"] == want })
			}
		})
	}
	t.Run("a limit that shrinks below what is pending", func(t *testing.T) {
		r := newRig(t, netdev.Config{}, driver.Config{})
		r.must(r.d.SetTXCoalesce(10*second, 15))
		tx := r.d.Pair(0).TX
		for range 10 {
			r.must(tx.Send(make([]byte, 60)))
		}
		tx.Flush()
		r.until("ten are sent", func() bool { return r.queue(1).Packets == 10 })
		if n := r.decided(1); n != 0 {
			t.Fatalf("%d decisions too early", n)
		}
		r.must(r.d.SetTXCoalesce(10*second, 8))
		if n := r.queue(1).CallReasons["limit_shrunk"]; n != 1 {
			t.Errorf("transmit: %d decisions after the change", n)
		}
		r.must(r.d.SetRXCoalesce(10*second, 64))
		r.arrive(3)
		r.must(r.d.SetRXCoalesce(0, 64))
		if n := r.queue(0).CallReasons["limit_shrunk"]; n != 1 {
			t.Errorf("receive: %d decisions after the change", n)
		}
	})
}

// TestEarly: nothing is kept back that would stall the driver or outlive the ring.
func TestEarly(t *testing.T) {
	t.Run("small rings, unreachable limits", func(t *testing.T) {
		for _, size := range []int{2, 16, 64, 256} {
			r := newRig(t, netdev.Config{}, driver.Config{QueueSize: size})
			r.must(r.d.SetRXCoalesce(never, 1<<30))
			r.must(r.d.SetTXCoalesce(never, 1<<30))
			const n = 600
			for range n {
				r.port.queues[0].inject(testFrame(0, 60))
			}
			got, sent := 0, 0
			packets := make([]driver.Packet, 64)
			tx, rx := r.d.Pair(0).TX, r.d.Pair(0).RX
			for sent < n {
				if err := tx.Send(make([]byte, 60)); errors.Is(err, driver.ErrFull) {
					if ok, err := tx.Wait(patience); err != nil || !ok {
						t.Fatalf("size %d: transmission stalls at %d: %v", size, sent, err)
					}
					tx.Reclaim()
					continue
				}
				sent++
			}
			tx.Flush()
			// The last frames may wait for their limit; all but a ring's worth may not.
			for got < n-size {
				k := rx.Receive(packets)
				if got += k; k == 0 {
					if ok, err := rx.Wait(patience); err != nil || !ok {
						t.Fatalf("size %d: reception stalls at %d: %v", size, got, err)
					}
				}
			}
			r.stop()
		}
	})
	t.Run("stop", func(t *testing.T) {
		r := newRig(t, netdev.Config{}, driver.Config{})
		r.must(r.d.SetRXCoalesce(never, 64))
		r.arrive(3)
		r.stop()
		if s := r.queue(0); s.CallReasons["stop"] != 1 {
			t.Errorf("receive queue: %+v", s)
		}
	})
	t.Run("disable", func(t *testing.T) {
		r := newRig(t, netdev.Config{}, driver.Config{})
		r.must(r.d.SetRXCoalesce(never, 64))
		r.arrive(3)
		r.must(r.d.Frontend().SetVringEnable(0, false))
		if s := r.queue(0); s.CallReasons["stop"]+s.CallReasons["disabled"] != 1 {
			t.Errorf("receive queue: %+v", s)
		}
	})
}

// TestSettings covers reference cases M04 (3) to (6) and M07's errors.
func TestSettings(t *testing.T) {
	r := newRig(t, netdev.Config{QueuePairs: 2}, driver.Config{QueuePairs: 2})
	get := func(vq uint16) [2]uint32 {
		t.Helper()
		u, p, err := r.d.VQCoalesce(vq)
		r.must(err)
		return [2]uint32{u, p}
	}
	want := func(vq uint16, usecs, packets uint32) {
		t.Helper()
		if got := get(vq); got != [2]uint32{usecs, packets} {
			t.Fatalf("queue %d: %v, want %d/%d", vq, got, usecs, packets)
		}
	}
	want(0, 0, 0)
	r.must(r.d.SetVQCoalesce(0, 500, 5))
	want(0, 500, 5)
	want(2, 0, 0)
	// Disabled and enabled again: what RX_SET said, which is nothing yet.
	fe := r.d.Frontend()
	reenable := func() {
		t.Helper()
		r.must(fe.SetVringEnable(0, false))
		r.must(fe.SetVringEnable(0, true))
	}
	reenable()
	want(0, 0, 0)
	r.must(r.d.SetRXCoalesce(900, 9))
	want(0, 900, 9)
	want(2, 900, 9)
	want(1, 0, 0)
	r.must(r.d.SetVQCoalesce(0, 500, 5))
	want(2, 900, 9)
	reenable()
	want(0, 900, 9)
	r.must(r.d.SetVQCoalesce(1, 7, 8))
	r.must(r.d.SetTXCoalesce(70, 80))
	want(1, 70, 80)
	want(3, 70, 80)

	for _, vq := range []uint16{4, 5, 0xffff} {
		if err := r.d.SetVQCoalesce(vq, 1, 1); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("VQ_SET of queue %d: %v", vq, err)
		}
		if _, _, err := r.d.VQCoalesce(vq); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("VQ_GET of queue %d: %v", vq, err)
		}
	}
	r.must(fe.SetVringEnable(2, false))
	if err := r.d.SetVQCoalesce(2, 1, 1); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("VQ_SET of a disabled queue: %v", err)
	}
	// A pair that the driver does not use at present has values all the same.
	r.must(fe.SetVringEnable(2, true))
	r.must(r.d.SetQueuePairs(1))
	r.must(r.d.SetVQCoalesce(2, 3, 4))
	want(2, 3, 4)

	// The next driver starts from zero.
	r.stop()
	r.drive(driver.Config{QueuePairs: 2})
	for vq := range uint16(4) {
		want(vq, 0, 0)
	}
	r.arrive(1)
	r.until("every packet", func() bool { return r.queue(0).CallReasons["every_packet"] > 0 })
}

// TestStopAndContinue: a VM that is paused keeps what its driver has set; the
// control ring goes on where it was.
func TestStopAndContinue(t *testing.T) {
	r := newRig(t, netdev.Config{}, driver.Config{})
	r.must(r.d.SetVQCoalesce(0, 500, 5))
	s := r.queue(0)
	if s.Coalesce.Guest != (netdev.LimitsSnapshot{Usecs: 500, Packets: 5}) {
		t.Fatalf("%+v", s.Coalesce)
	}
	r.must(r.d.Pause())
	r.must(r.d.Resume())
	u, p, err := r.d.VQCoalesce(0)
	r.must(err)
	if u != 500 || p != 5 {
		t.Errorf("after stop and continue: %d/%d", u, p)
	}
}

// TestPolicy: what the host's limits do to the driver's, and the other way round.
func TestPolicy(t *testing.T) {
	type l = netdev.LimitsSnapshot
	tests := []struct {
		name        string
		host, guest l
		strict      bool
		without     virtio.Features
		want        l
	}{
		{"no policy", l{}, l{64, 32}, false, 0, l{64, 32}},
		{"the driver asks for nothing", l{100, 50}, l{}, false, 0, l{100, 50}},
		{"Linux's default", l{100, 50}, l{0, 1}, false, 0, l{100, 50}},
		{"the driver's limits are a ceiling", l{100, 50}, l{64, 64}, false, 0, l{64, 50}},
		{"strict", l{100, 50}, l{0, 1}, true, 0, l{0, 1}},
		{"strict, the driver coalesces", l{100, 50}, l{200, 200}, true, 0, l{100, 50}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			host := coalesce.Limits(tt.host)
			r := newRig(t, netdev.Config{RXLimits: host, TXLimits: host, Strict: tt.strict}, driver.Config{})
			r.must(r.d.SetRXCoalesce(tt.guest.Usecs, tt.guest.Packets))
			r.must(r.d.SetTXCoalesce(tt.guest.Usecs, tt.guest.Packets))
			for i := range 2 {
				c := r.queue(i).Coalesce
				if c.Effective != tt.want || c.Guest != tt.guest || c.Host != tt.host {
					t.Errorf("queue %d: %+v, want %+v", i, c, tt.want)
				}
			}
		})
	}
	t.Run("a driver that cannot ask", func(t *testing.T) {
		r := newRig(t, netdev.Config{RXLimits: coalesce.Limits{Usecs: 100, Packets: 50}, Strict: true},
			driver.Config{Without: virtio.FeatureNotfCoal | virtio.FeatureVQNotfCoal})
		if c := r.queue(0).Coalesce; c.Effective != (l{100, 50}) {
			t.Errorf("%+v", c)
		}
	})
}

// TestEngines: the host's policy can be changed while traffic flows, learns from
// it, and stays below the driver's limits.
func TestEngines(t *testing.T) {
	r := newRig(t, netdev.Config{}, driver.Config{})
	spec := func(text string, d coalesce.Direction) coalesce.EngineSpec {
		t.Helper()
		s, err := coalesce.ParseEngine(text, d)
		r.must(err)
		return s
	}
	r.must(r.dev.SetModeration(0, spec("fixed:300/20", coalesce.RX)))
	if c := r.queue(0).Coalesce; c.Effective != (netdev.LimitsSnapshot{Usecs: 300, Packets: 20}) || c.Engine != "fixed:300/20" {
		t.Errorf("%+v", c)
	}
	if c := r.queue(1).Coalesce; c.Effective != (netdev.LimitsSnapshot{}) || c.Engine != "off" {
		t.Errorf("the other queue: %+v", c)
	}
	if r.dev.SetModeration(2, coalesce.EngineSpec{}) == nil {
		t.Error("the control queue was given an engine")
	}
	for _, text := range []string{"net-dim", "net-dim:cqe", "rdma-dim"} {
		r.must(r.dev.SetModeration(0, spec(text, coalesce.RX)))
		r.must(r.d.SetRXCoalesce(0, 0))
		was := r.queue(0).Coalesce.Decision
		c := r.queue(0).Coalesce
		// A driver that sees a frame before it is told of it takes no notification,
		// so how many frames this needs is not certain.
		for end := time.Now().Add(patience); c.Decision.At == was.At && time.Now().Before(end); c = r.queue(0).Coalesce {
			for range 100 {
				r.port.queues[0].inject(testFrame(0, 60))
				r.receive(0, 1)
			}
		}
		if c.Engine != text || c.Decision.At == was.At || c.Decision.Reason == "" {
			t.Errorf("%s has not decided anything: %+v", text, c)
		}
		if c.Effective != c.Host || c.Host != netdev.LimitsSnapshot(c.Decision.Limits) {
			t.Errorf("%s: %+v", text, c)
		}
		// A ceiling of the driver's.
		r.must(r.d.SetRXCoalesce(1, 2))
		if c := r.queue(0).Coalesce; c.Effective.Usecs > 1 || c.Effective.Packets > 2 {
			t.Errorf("%s is above the driver's limits: %+v", text, c)
		}
	}
	r.must(r.dev.SetModeration(0, coalesce.EngineSpec{}))
	if c := r.queue(0).Coalesce; c.Effective != (netdev.LimitsSnapshot{Usecs: 1, Packets: 2}) {
		t.Errorf("off: %+v", c)
	}
}
