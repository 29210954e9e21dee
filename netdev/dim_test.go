package netdev_test

import (
	"testing"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/netdev"
)

// TestGuestDIM: a Linux guest with adaptive-rx on runs net-dim and sends each of
// its choices as VQ_SET; the host has an engine of its own, which learns from the
// same traffic. The guest's limits are a ceiling, it reads back what it wrote,
// and when it gives up the host is free again.
func TestGuestDIM(t *testing.T) {
	type l = netdev.LimitsSnapshot
	// net-dim's profile for rx, upwards and back down.
	steps := []l{{1, 256}, {8, 256}, {64, 256}, {128, 256}, {256, 256}, {128, 256}, {64, 256}, {8, 256}, {1, 256}}
	for _, name := range []string{"net-dim", "rdma-dim", "adaptive", "adaptive:max-latency=30", "fixed:32/16"} {
		t.Run(name, func(t *testing.T) {
			spec, err := coalesce.ParseEngine(name, coalesce.RX)
			if err != nil {
				t.Fatal(err)
			}
			r := newRig(t, netdev.Config{RXModeration: spec}, driver.Config{})
			get := func(want l) {
				t.Helper()
				u, p, err := r.d.VQCoalesce(0)
				r.must(err)
				if got := (l{u, p}); got != want {
					t.Errorf("VQ_GET: %v, want %v", got, want)
				}
			}
			// in checks what is in force. The engine may change its mind between the
			// two numbers of a snapshot; the ceiling holds in each all the same.
			in := func(guest l) {
				t.Helper()
				asks := !coalesce.Limits(guest).EveryPacket()
				r.until("the smaller of each is in force", func() bool {
					c := r.queue(0).Coalesce
					if e := c.Effective; c.Guest != guest || asks && !coalesce.Limits(e).EveryPacket() && (e.Usecs > guest.Usecs || e.Packets > guest.Packets) {
						t.Fatalf("guest %v: %+v", guest, c)
					}
					want := c.Host
					if asks && c.Host != (l{}) && !coalesce.Limits(c.Host).EveryPacket() {
						want = l{min(guest.Usecs, c.Host.Usecs), min(guest.Packets, c.Host.Packets)}
					}
					return c.Effective == want
				})
			}
			traffic := func(guest l) {
				t.Helper()
				for range 20 {
					for range 10 {
						r.port.queues[0].inject(testFrame(0, 60))
					}
					r.receive(0, 10)
					in(guest)
					get(guest)
				}
			}
			get(l{})
			traffic(l{})
			for range 2 {
				for _, s := range steps {
					r.must(r.d.SetVQCoalesce(0, s.Usecs, s.Packets))
					get(s)
					in(s)
					traffic(s)
				}
			}
			// ethtool -C adaptive-rx off: Linux sends RX_SET with what it had before.
			for _, off := range []l{{0, 0}, {0, 1}} {
				r.must(r.d.SetRXCoalesce(off.Usecs, off.Packets))
				get(off)
				in(off)
				if c := r.queue(0).Coalesce; c.Effective != c.Host {
					t.Errorf("the host is not free: %+v", c)
				}
				traffic(off)
			}
			if spec.Kind == coalesce.EngineNetDim || spec.Kind == coalesce.EngineAdaptive {
				if d := r.queue(0).Coalesce.Decision; d.At == 0 || d.Reason == "" {
					t.Errorf("the engine has not decided anything: %+v", d)
				}
			}
		})
	}
}

// With the host's engine off the guest's DIM has the ring for itself, and with
// --coalesce-strict its "every packet" is an order.
func TestGuestDIMAlone(t *testing.T) {
	type l = netdev.LimitsSnapshot
	r := newRig(t, netdev.Config{}, driver.Config{})
	for _, s := range []l{{1, 256}, {8, 256}, {64, 256}, {0, 1}} {
		r.must(r.d.SetVQCoalesce(0, s.Usecs, s.Packets))
		if c := r.queue(0).Coalesce; c.Effective != s || c.Guest != s {
			t.Errorf("%+v, want %v", c, s)
		}
	}
	spec, err := coalesce.ParseEngine("net-dim", coalesce.RX)
	r.must(err)
	strict := newRig(t, netdev.Config{RXModeration: spec, Strict: true}, driver.Config{})
	strict.must(strict.d.SetVQCoalesce(0, 64, 256))
	strict.must(strict.d.SetRXCoalesce(0, 1))
	if c := strict.queue(0).Coalesce; c.Effective != (l{0, 1}) {
		t.Errorf("strict: %+v", c)
	}
}
