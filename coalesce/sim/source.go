package sim

import (
	"math"
	"math/rand/v2"
)

// open is traffic that does not react to the guest.
type open struct {
	q *queue
	// next returns the time until the next packets, how many come at once and
	// how large each is; ok is false at the end.
	next func(now int64) (gap int64, packets int, bytes uint32, ok bool)

	packets int
	bytes   uint32
	do      func()
}

func (s *open) start() {
	s.do = func() {
		for range s.packets {
			s.q.arrive(s.bytes, 0)
		}
		s.plan()
	}
	s.plan()
}

func (s *open) plan() {
	gap, n, bytes, ok := s.next(s.q.now)
	if !ok || s.q.now+gap >= s.q.end {
		return
	}
	s.packets, s.bytes = n, bytes
	s.q.after(gap, s.do)
}

func (s *open) taken(packet) {}

// every is one packet at equal distances, perSecond of them.
func every(perSecond int, bytes uint32) func(int64) (int64, int, uint32, bool) {
	gap := second / int64(perSecond)
	return func(int64) (int64, int, uint32, bool) { return gap, 1, bytes, true }
}

// poisson is one packet at random, perSecond of them on average.
func poisson(r *rand.Rand, perSecond int, bytes uint32) func(int64) (int64, int, uint32, bool) {
	mean := float64(second) / float64(perSecond)
	return func(int64) (int64, int, uint32, bool) {
		return int64(math.Ceil(r.ExpFloat64() * mean)), 1, bytes, true
	}
}

// bursts is packets of them with a distance of gap, then a pause between half
// and one and a half times as long as given.
func bursts(r *rand.Rand, packets int, gap, pause int64, bytes uint32) func(int64) (int64, int, uint32, bool) {
	left := 0
	return func(int64) (int64, int, uint32, bool) {
		if left--; left > 0 {
			return gap, 1, bytes, true
		}
		left = packets
		return pause/2 + r.Int64N(pause), 1, bytes, true
	}
}

// steps goes through rates, each for length, over and over.
func steps(r *rand.Rand, length int64, bytes uint32, rates ...int) func(int64) (int64, int, uint32, bool) {
	return func(now int64) (int64, int, uint32, bool) {
		rate := rates[int(now/length)%len(rates)]
		gap := int64(math.Ceil(r.ExpFloat64() * float64(second) / float64(rate)))
		// What would lie behind the next step is drawn anew there.
		if left := length - now%length; gap > left {
			return left, 0, 0, true
		}
		return gap, 1, bytes, true
	}
}

// ask is clients that each send a request and wait for its answer.
type ask struct {
	q       *queue
	clients int
	bytes   uint32
	// answer is from the guest's network stack back to the client, think from
	// there to the next request, on average: 0 for at once.
	answer, think int64
	r             *rand.Rand
}

func (s *ask) start() {
	for i := range s.clients {
		s.q.at(1+s.r.Int64N(max(s.answer+s.think, 1)), func() { s.send(int32(i)) })
	}
}

func (s *ask) send(tag int32) {
	if s.q.now < s.q.end {
		s.q.arrive(s.bytes, tag)
	}
}

func (s *ask) taken(p packet) {
	d := s.answer
	if s.think > 0 {
		d += int64(s.r.ExpFloat64() * float64(s.think))
	}
	s.q.after(d, func() { s.send(p.tag) })
}

// bulk is a sender with a window, like a TCP connection's: it sends as fast as
// it can until window packets are not acknowledged.
type bulk struct {
	q      *queue
	window int
	bytes  uint32
	// send is what the sender needs for a packet, answer how long an
	// acknowledgement takes. The guest acknowledges each second packet.
	send, answer int64

	flying, owed int
	busy         bool
	do           func()
}

func (s *bulk) start() {
	s.do = func() {
		s.busy = false
		if s.q.now < s.q.end {
			s.flying++
			s.q.arrive(s.bytes, 0)
			s.more()
		}
	}
	s.more()
}

func (s *bulk) more() {
	if !s.busy && s.flying < s.window {
		s.busy = true
		s.q.after(s.send, s.do)
	}
}

func (s *bulk) taken(packet) {
	// The last packet of a window is acknowledged by the delayed timer of a real
	// stack, which an even window never needs.
	if s.owed++; s.owed == 2 {
		s.owed = 0
		s.q.after(s.answer, func() { s.flying -= 2; s.more() })
	}
}

// sender is a guest's program that sends, and the driver's transmit path below
// it. It reclaims buffers as it sends and puts the event index at three quarters
// of what is outstanding, as Linux does.
type sender struct {
	q *queue
	// window is how many packets may be unreclaimed, as for a socket's buffer;
	// gap is from one packet to the next, 0 for as fast as it can.
	window int
	gap    func() int64
	bytes  uint32

	flying int
	wants  bool // it would send if it could
	active bool
	due    int64
	do     func()
}

// stopAt is how many free descriptors a Linux driver wants at least.
const stopAt = 19

func (s *sender) start() {
	s.q.guest.rearmed = s.resume
	s.do = s.send
	s.active = true
	s.q.guest.runs = s.gap == nil
	s.q.after(1, s.do)
}

// resume is the end of polling, after which there may be room.
func (s *sender) resume() {
	if s.wants && s.room() && !s.active {
		s.wants, s.active = false, true
		s.q.guest.runs = true
		s.q.after(s.q.p.Send, s.do)
	}
}

func (s *sender) room() bool {
	return s.flying < s.window && s.q.p.Ring-s.flying >= stopAt
}

func (s *sender) send() {
	q := s.q
	g := &q.guest
	if q.now >= q.end {
		s.active, g.runs = false, false
		return
	}
	if g.polling && !g.waking {
		// One processor does both; the program goes on when polling ends.
		s.active, s.wants = false, true
		return
	}
	spent := q.p.Send
	for q.used.len() > 0 {
		spent += q.p.Reclaim
		g.takeOne()
	}
	if !s.room() {
		s.wants, s.active, g.runs = true, false, false
		g.ring.event = g.done
		return
	}
	s.flying++
	q.m.guest(q.now, spent)
	q.arrive(s.bytes, 0)
	q.ring.event = g.done + uint16(s.flying*3/4)
	if s.gap != nil {
		g.runs = false
		// What is late is caught up with.
		s.due += s.gap()
		q.at(max(s.due, q.now+spent), s.do)
		return
	}
	q.after(spent, s.do)
}

func (s *sender) taken(packet) { s.flying-- }
