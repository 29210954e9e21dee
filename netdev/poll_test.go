package netdev

import "testing"

// pauses runs a poller through pauses of the given length, which are extra longer
// if the worker looks, with looks a step apart. It returns for how many of them it
// looked, and for how many it looked in vain.
func pauses(p *poller, now *int64, n int, length, extra int64) (looked, vain int) {
	const step = 200
	for range n {
		end, looks := *now+length, false
		for *now < end {
			if !p.idle(*now) {
				if looks {
					vain++
				}
				*now = end // asleep
				break
			}
			if !looks {
				looks = true
				looked++
				end += extra
			}
			*now += step
		}
		p.worked(*now)
		p.worked(*now + 100) // more work, no pause
		*now += 1000
	}
	return looked, vain
}

func TestPoller(t *testing.T) {
	for name, c := range map[string]struct {
		length, extra int64
		// of 10,000 pauses
		looked, vain [2]int
	}{
		"a driver that is always there": {length: 1500, looked: [2]int{9900, 10_000}},
		"one that comes now and then":   {length: 200_000, looked: [2]int{0, 10}, vain: [2]int{0, 10}},
		"one that needs the processor":  {length: 2000, extra: 200_000, looked: [2]int{1, 30}, vain: [2]int{1, 30}},
	} {
		t.Run(name, func(t *testing.T) {
			var p poller
			now := int64(1)
			looked, vain := pauses(&p, &now, 10_000, c.length, c.extra)
			if looked < c.looked[0] || looked > c.looked[1] || vain < c.vain[0] || vain > c.vain[1] {
				t.Errorf("looked %d times, %d in vain", looked, vain)
			}
		})
	}
}

// After traffic that it does not pay for it looks again once it does.
func TestPollerChanges(t *testing.T) {
	var p poller
	now := int64(1)
	pauses(&p, &now, 100, 200_000, 0)
	if looked, _ := pauses(&p, &now, 100, 2000, 0); looked < 60 {
		t.Errorf("looked %d times", looked)
	}
	// A pause for the night costs one.
	pauses(&p, &now, 1, 1_000_000_000, 0)
	if looked, _ := pauses(&p, &now, 100, 2000, 0); looked < 80 {
		t.Errorf("looked %d times after a long pause", looked)
	}
}

// A runner lets others have the processor after each turn of work, and no sooner;
// with several workers it looks for events more often.
func TestShare(t *testing.T) {
	l, err := newLoop()
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	type step struct{ now, shared, glanced int64 }
	for workers, steps := range map[int][]step{
		1: {{1, 1, 1}, {turn + 1, 1, 1}, {turn + 2, turn + 2, turn + 2}, {2*turn + 2, turn + 2, turn + 2}, {4 * turn, 4 * turn, 4 * turn}},
		2: {{1, 1, 1}, {glanceShared + 1, 1, 1}, {glanceShared + 2, 1, glanceShared + 2}, {turn + 2, turn + 2, turn + 2}, {2*turn + 2, turn + 2, 2*turn + 2}},
	} {
		r := &runner{loop: l, n: workers, shared: 1, glanced: 1}
		for _, s := range steps {
			if r.share(s.now); r.shared != s.shared || r.glanced != s.glanced {
				t.Errorf("%d workers, at %d: last shared at %d, glanced at %d, want %+v", workers, s.now, r.shared, r.glanced, s)
			}
		}
	}
}
