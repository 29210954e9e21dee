package sim

import (
	"testing"

	"github.com/vhostnet/vhostnet/coalesce"
)

// A guest with its own DIM and a host engine: both look at the same traffic, and
// the smaller of what they want is in force. That they do not fight means:
//
//   - neither is stirred up by the other: it changes its mind no more often than
//     against an opponent that never does;
//   - they do not hold each other down: there are not many more notifications
//     than with the one of them that has more of them alone;
//   - nobody pays for it: the delay is no longer, and the throughput no lower, than
//     with the worse of the two alone.
//
// What net-dim does by itself is not a fight. It is a hill climb, and limits that
// something else caps are a plateau: whichever side it is on, it walks about on
// it, with any cap. So the measure for it is how it walks below fixed ones.
const (
	// moreChanges, a second, is what chance makes of it: some windows of 64
	// notifications that come out otherwise.
	moreChanges = 50.0
	// moreNotifications, moreDelay and lessThroughput are factors.
	moreNotifications = 1.5
	moreDelay         = 1.2
	lessThroughput    = 0.95
)

// heldDown is the case in which adaptive and the guest's net-dim do hold each
// other down, and by which factor at most. Every now and then adaptive does not
// wait, to compare. If net-dim has just gone a step up it takes what that brings
// for its own doing, goes back, and parks at 64 us. Linux has no such guest: its
// driver moderates receive queues only.
var heldDown = map[string]float64{"tx-200k": 2.5}

// dimRun is how two that moderate fared, on average over seeds.
type dimRun struct {
	// guest, host and inForce are changes a second and virtqueue.
	guest, host, inForce                float64
	p99, throughput, notificationsShare float64
}

// runDIM runs engine e; the guest's limits are fixed, or with dim are up to its
// net-dim. It asserts on the way that what the guest asks for is a ceiling.
func runDIM(t *testing.T, e string, w Workload, limits coalesce.Limits, dim bool, seeds uint64) (d dimRun) {
	t.Helper()
	s, err := coalesce.ParseEngine(e, w.Direction)
	if err != nil {
		t.Fatal(err)
	}
	perSecond := float64(second) / float64(w.Duration-w.Warmup) / float64(w.Queues) / float64(seeds)
	for seed := range seeds {
		last := map[int]InForce{}
		r := Run(Config{Engine: s, Workload: w, Seed: seed + 1, Limits: limits, GuestDIM: dim, Watch: func(queue int, at int64, l InForce) {
			belowCeiling(t, l)
			was := last[queue]
			last[queue] = l
			if at < w.Warmup || at >= w.Duration {
				return
			}
			if l.Guest != was.Guest {
				d.guest += perSecond
			}
			if l.Host != was.Host {
				d.host += perSecond
			}
			if l.Limits != was.Limits {
				d.inForce += perSecond
			}
		}})
		d.p99 += r.P99 / float64(seeds)
		d.throughput += r.PacketsPerSecond / float64(seeds)
		d.notificationsShare += r.NotificationsPerPacket / float64(seeds)
	}
	return d
}

func belowCeiling(t *testing.T, l InForce) {
	t.Helper()
	if l.Limits != coalesce.Effective(l.Guest, l.Host, false) {
		t.Errorf("%+v", l)
	}
	if l.Guest.EveryPacket() || l.Limits.EveryPacket() {
		return
	}
	if l.Limits.Usecs > l.Guest.Usecs || l.Limits.Packets > l.Guest.Packets {
		t.Errorf("%v is in force, the guest asks for %v", l.Limits, l.Guest)
	}
}

// calmGuest is the guest's net-dim against a host that never changes its mind:
// the most changes with any of some fixed limits.
func calmGuest(t *testing.T, w Workload) (calm dimRun) {
	for _, e := range []string{"off", "fixed:0/1", "fixed:8/128", "fixed:32/128", "fixed:120/128"} {
		d := runDIM(t, e, w, coalesce.Limits{}, true, 1)
		calm.guest, calm.inForce = max(calm.guest, d.guest), max(calm.inForce, d.inForce)
	}
	return calm
}

// calmHost is the engine against a guest of that kind.
func calmHost(t *testing.T, e string, w Workload) (calm dimRun) {
	for _, usecs := range []uint32{0, 8, 32, 128} {
		d := runDIM(t, e, w, coalesce.Limits{Usecs: usecs, Packets: 256}, false, 1)
		calm.host, calm.inForce = max(calm.host, d.host), max(calm.inForce, d.inForce)
	}
	return calm
}

func TestGuestDIMAndHostDoNotFight(t *testing.T) {
	for _, w := range Workloads() {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			var none coalesce.Limits
			if raceEnabled {
				// Ten times slower, for code that has no goroutines: what holds at each
				// change has to do, the rest is about long runs.
				w.Duration = w.Warmup + 20*millisecond
				for _, e := range []string{"net-dim", "rdma-dim", "adaptive"} {
					runDIM(t, e, w, none, true, 1)
				}
				return
			}
			const seeds = 2
			guest := runDIM(t, "off", w, none, true, seeds)
			var calm dimRun
			if w.Steady {
				calm = calmGuest(t, w)
			}
			for _, e := range []string{"net-dim", "rdma-dim", "adaptive"} {
				host := runDIM(t, e, w, none, false, seeds)
				both := runDIM(t, e, w, none, true, seeds)
				if most := moreDelay * max(guest.p99, host.p99); both.p99 > most {
					t.Errorf("%s: p99 is %.1f us, %.1f with the guest alone, %.1f with the host alone", e, both.p99, guest.p99, host.p99)
				}
				if least := lessThroughput * min(guest.throughput, host.throughput); both.throughput < least {
					t.Errorf("%s: %.0f packets/s, %.0f with the guest alone, %.0f with the host alone", e, both.throughput, guest.throughput, host.throughput)
				}
				if !w.Steady {
					continue
				}
				down := e == "adaptive" && heldDown[w.Name] != 0
				factor := moreNotifications
				if down {
					factor = heldDown[w.Name]
				}
				if most := factor * max(guest.notificationsShare, host.notificationsShare); both.notificationsShare > most {
					t.Errorf("%s: %.4f notifications per packet, %.4f with the guest alone, %.4f with the host alone",
						e, both.notificationsShare, guest.notificationsShare, host.notificationsShare)
				}
				still := calmHost(t, e, w)
				if both.guest > calm.guest+moreChanges && !down {
					t.Errorf("%s: the guest changes its limits %.1f times a second, %.1f if the host's are fixed", e, both.guest, calm.guest)
				}
				if both.host > still.host+moreChanges {
					t.Errorf("%s: it changes its limits %.1f times a second, %.1f if the guest's are fixed", e, both.host, still.host)
				}
				if most := calm.inForce + still.inForce + moreChanges; both.inForce > most {
					t.Errorf("%s: the limits in force change %.1f times a second, %.1f if the host's are fixed, %.1f if the guest's are",
						e, both.inForce, calm.inForce, still.inForce)
				}
			}
		})
	}
}
