package vring

import "github.com/vhostnet/vhostnet/virtio"

func (q *split) PopPlain(ids []uint16, bufs [][]byte, write bool) int {
	if q.idle != nil {
		return 0
	}
	n := int(q.avail.Load16(offIdx) - q.next)
	if n > q.size-q.flight-int(q.done-q.published) {
		return 0 // Pop breaks the ring
	}
	if n = min(n, len(ids), len(bufs)); n == 0 {
		return 0
	}
	got := q.plain(ids[:n], bufs[:n], write)
	if got == 0 && q.seek() {
		got = q.plain(ids[:n], bufs[:n], write)
	}
	return got
}

// plain is popPlain without what an unusual chain would need. As there, a call in
// the loop would cost all chains that do not need it.
func (q *split) plain(ids []uint16, bufs [][]byte, write bool) int {
	base, mem := q.cur.Region()
	heads, desc, mask, next := q.heads, q.desc, q.mask, q.next
	size := uint64(len(mem))
	want := uint64(0)
	if write {
		want = virtio.DescFWrite << 32
	}
	i := 0
	for ; i < len(ids) && i < len(bufs); i++ {
		// Head, address and the rest are read once each; the driver may change
		// them at any time.
		head := heads[next&mask]
		d := 2 * uint(head)
		if d+1 >= uint(len(desc)) {
			break
		}
		off, rest := desc[d]-base, desc[d+1]
		l := uint64(uint32(rest))
		if rest&(unusual|virtio.DescFWrite<<32) != want || l == 0 || off >= size || l > size-off {
			break
		}
		ids[i] = head
		bufs[i] = mem[off : off+l : off+l]
		next++
	}
	q.next = next
	q.flight += i
	return i
}

// seek goes to the memory region of the next chain's first buffer, and reports
// whether that is another one than before.
func (q *split) seek() bool {
	d := 2 * uint(q.heads[q.next&q.mask])
	if d+1 >= uint(len(q.desc)) {
		return false
	}
	old, mem := q.cur.Region()
	if q.cur.Prefix(q.desc[d], 1) == nil {
		return false
	}
	base, _ := q.cur.Region()
	return base != old || mem == nil
}
