package netdev

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// inboxBytes is what can wait for a worker: seven of the largest frames.
const inboxBytes = 512 << 10

// inbox holds frames that workers have read from their queues of the port and that
// belong to another one's ring, with their virtio-net headers. It is used only while the
// driver steers by an indirection table and the port does not, or not quite; so a
// lock for each frame is a price that others do not pay.
type inbox struct {
	// ready: there is something. The owner looks at it without the lock.
	ready atomic.Bool
	mu    sync.Mutex
	// All below is guarded by mu. taking: frames are taken; buf is used round and
	// round, count bytes of it from head on: a length, then a frame, and so on.
	taking      bool
	buf         []byte
	head, count int
}

// open begins to take frames, or stops and forgets those that are there.
func (b *inbox) open(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taking = on
	if !on {
		b.head, b.count = 0, 0
		b.ready.Store(false)
	}
}

// push adds the first n bytes of a list. It returns false if it does not take
// them, and whether the owner may be asleep.
func (b *inbox) push(list [][]byte, n int) (ok, wake bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	const head = 4
	if !b.taking || n+head > inboxBytes-b.count {
		return false, false
	}
	if b.buf == nil {
		b.buf = make([]byte, inboxBytes)
	}
	var size [head]byte
	binary.LittleEndian.PutUint32(size[:], uint32(n))
	b.append(size[:])
	for _, s := range list {
		s = s[:min(len(s), n)]
		b.append(s)
		if n -= len(s); n == 0 {
			break
		}
	}
	wake = !b.ready.Load()
	b.ready.Store(true)
	return true, wake
}

// append copies src behind what is there; there is room.
func (b *inbox) append(src []byte) {
	at := (b.head + b.count) % inboxBytes
	b.count += len(src)
	n := copy(b.buf[at:], src)
	copy(b.buf, src[n:])
}

// pop moves the next frame into a list that has room for it, and returns its
// length, 0 if there is none.
func (b *inbox) pop(list [][]byte) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.count == 0 {
		b.ready.Store(false)
		return 0
	}
	var size [4]byte
	b.take(size[:])
	n := int(binary.LittleEndian.Uint32(size[:]))
	left := n
	for _, dst := range list {
		dst = dst[:min(len(dst), left)]
		b.take(dst)
		if left -= len(dst); left == 0 {
			break
		}
	}
	b.ready.Store(b.count > 0)
	return n
}

// take copies what comes first into dst and forgets it.
func (b *inbox) take(dst []byte) {
	n := copy(dst, b.buf[b.head:])
	copy(dst[n:], b.buf)
	b.head, b.count = (b.head+len(dst))%inboxBytes, b.count-len(dst)
}
