package vswitch

import "sync/atomic"

const (
	// ways is how many addresses share a bucket: their words fill a cache line.
	ways    = 8
	buckets = 1024
	// maxLearned is how many addresses a port can have in the table at a time.
	maxLearned = 1024
	// maxAge is for how many seconds an address is remembered (IEEE 802.1Q, 8.8.3).
	maxAge = 300
)

// table knows behind which port an address is. Reading, and refreshing what is known,
// takes no lock; the holder of Switch.mu alone changes who has a slot.
type table struct {
	// words have an address in the upper 48 bits and the number of a port below,
	// so that both change at once; 0 is nobody.
	words [buckets * ways]atomic.Uint64
	// seen is when, in seconds.
	seen [buckets * ways]atomic.Uint32
}

// bucketOf is the first slot of an address's bucket.
func bucketOf(mac uint64) int {
	return int(mac*0x9E3779B97F4A7C15>>54) * ways // 54: 10 bits are left
}

// age is for how many seconds a slot's address was not seen. Another worker may have
// seen it after this one has looked at the clock, so it can be less than 0.
func (t *table) age(at int, now uint32) int32 { return int32(now - t.seen[at].Load()) }

// lookup returns the number of the port behind which an address is, 0 if that is
// not known.
func (t *table) lookup(mac uint64, now uint32) uint16 {
	for at, end := bucketOf(mac), bucketOf(mac)+ways; at < end; at++ {
		if v := t.words[at].Load(); v>>16 == mac {
			if t.age(at, now) > maxAge {
				return 0
			}
			return uint16(v)
		}
	}
	return 0
}

// refresh notes that an address was seen, and tells whether the table knows it
// behind that port.
func (t *table) refresh(mac uint64, number uint16, now uint32) bool {
	for at, end := bucketOf(mac), bucketOf(mac)+ways; at < end; at++ {
		if v := t.words[at].Load(); v>>16 == mac {
			if uint16(v) != number {
				return false
			}
			if t.seen[at].Load() != now {
				t.seen[at].Store(now)
			}
			return true
		}
	}
	return false
}

// learned is what a change of the table was.
type learned int

const (
	learnedNothing learned = iota // there was no room
	learnedNew
	learnedMove
)

// learn puts an address behind a port. owned counts the slots of each port; the
// caller holds Switch.mu.
func (t *table) learn(mac uint64, number uint16, now uint32, owned func(number uint16) *int) learned {
	const nowhere = -1
	empty, aged, own := nowhere, nowhere, nowhere
	for at, end := bucketOf(mac), bucketOf(mac)+ways; at < end; at++ {
		v := t.words[at].Load()
		age := t.age(at, now)
		switch {
		case v == 0:
			empty = at
		case v>>16 == mac:
			if uint16(v) == number {
				t.seen[at].Store(now)
				return learnedNew // somebody else was faster
			}
			t.set(at, mac, number, now, owned)
			return learnedMove
		case age > maxAge:
			aged = at
		case uint16(v) == number && (own == nowhere || age > t.age(own, now)):
			own = at
		}
	}
	for _, at := range [...]int{empty, aged, own} {
		if at == nowhere || *owned(number) >= maxLearned && uint16(t.words[at].Load()) != number {
			continue
		}
		t.set(at, mac, number, now, owned)
		return learnedNew
	}
	return learnedNothing
}

func (t *table) set(at int, mac uint64, number uint16, now uint32, owned func(number uint16) *int) {
	if v := t.words[at].Load(); v != 0 {
		*owned(uint16(v))--
	}
	*owned(number)++
	t.seen[at].Store(now)
	t.words[at].Store(mac<<16 | uint64(number))
}

// forget takes all addresses behind a port out. The caller holds Switch.mu.
func (t *table) forget(number uint16) {
	for at := range t.words {
		if uint16(t.words[at].Load()) == number {
			t.words[at].Store(0)
		}
	}
}

// count returns how many addresses are known behind a port.
func (t *table) count(number uint16, now uint32) (n uint64) {
	for at := range t.words {
		if v := t.words[at].Load(); v != 0 && uint16(v) == number && t.age(at, now) <= maxAge {
			n++
		}
	}
	return n
}
