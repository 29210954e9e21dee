package guestmem

import (
	"os"
	"sync/atomic"
	"unsafe"
)

// View is a window on memory that another party writes at the same time, a ring
// for example. Offsets are in bytes; values are little-endian, which the
// supported architectures are. An access outside of the window panics, as that of
// a slice does.
type View struct {
	words []uint32
	// lead is how many bytes of words[0] lie before the window, 0 or 2.
	lead int
	n    int
}

// NewView returns the window on b, whose address must be even. Where b begins or
// ends inside an aligned word, the neighbouring two bytes are loaded with it and
// stored back by compare-and-swap only, unchanged.
func NewView(b []byte) View {
	if len(b) == 0 {
		return View{}
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)&1 != 0 {
		panic("guestmem: View of an odd address")
	}
	lead := int(uintptr(p) & 2)
	return View{
		words: unsafe.Slice((*uint32)(unsafe.Add(p, -lead)), (lead+len(b)+3)/4),
		lead:  lead,
		n:     len(b),
	}
}

// Len returns the size of the window in bytes.
func (v View) Len() int { return v.n }

// Load16 returns the 16 bits at off, which is even.
func (v View) Load16(off int) uint16 {
	off += v.lead
	return uint16(atomic.LoadUint32(&v.words[off>>2]) >> (off & 2 * 8))
}

// Load32 returns the 32 bits at off; off must be aligned in memory.
func (v View) Load32(off int) uint32 { return atomic.LoadUint32(&v.words[(off+v.lead)>>2]) }

// Store32 stores 32 bits at off; off must be aligned in memory.
func (v View) Store32(off int, x uint32) { atomic.StoreUint32(&v.words[(off+v.lead)>>2], x) }

// StoreFence32 is Store32 before any load that follows: for a side that stores,
// and then has to see what the other side stored before it looked.
//
// sync/atomic promises as much of every store, with an exchange on x86-64. On one
// virtual AMD machine both sides nevertheless saw the old value in some 1 of 10,000
// such races (faults TestV09Rearm, without the race detector), and no longer with
// another locked instruction behind the exchange. Why is not known: programs that
// do only this did not show it.
func (v View) StoreFence32(off int, x uint32) {
	v.Store32(off, x)
	var fence uint32
	atomic.AddUint32(&fence, 1)
}

// StoreFence64 is [View.StoreFence32] for a 64-bit word, one of [Pairs64] for example.
func StoreFence64(p *uint64, x uint64) {
	atomic.StoreUint64(p, x)
	var fence uint32
	atomic.AddUint32(&fence, 1)
}

// Store16 stores 16 bits at off, which is even, and leaves the other half of the
// word as it is, whoever writes that meanwhile.
func (v View) Store16(off int, x uint16) {
	off += v.lead
	w, shift := &v.words[off>>2], uint(off&2*8)
	for {
		old := atomic.LoadUint32(w)
		if atomic.CompareAndSwapUint32(w, old, old&^(0xffff<<shift)|uint32(x)<<shift) {
			return
		}
	}
}

// Put32 stores 32 bits at off, aligned in memory, without ordering: for memory
// that is this side's until it is published with an ordered store.
func (v View) Put32(off int, x uint32) { v.words[(off+v.lead)>>2] = x }

// Load64 returns the 64 bits at off; off must be 8-aligned in memory.
func (v View) Load64(off int) uint64 {
	w := v.words[(off+v.lead)>>2:][:2] // and not w[1], which would be a read
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(w))))
}

// Store64 stores 64 bits at off; off must be 8-aligned in memory.
func (v View) Store64(off int, x uint64) {
	w := v.words[(off+v.lead)>>2:][:2] // and not w[1], which would be a read
	atomic.StoreUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(w))), x)
}

// Aligned reports whether b begins at a multiple of n, a power of two, in this
// process's memory.
func Aligned(b []byte, n uintptr) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))&(n-1) == 0
}

// Words16 returns memory as 16-bit words, Words32 and Words64 as wider ones. They
// are for what an index publishes: who fills the words stores the index with an
// ordered store afterwards, who reads them loads the index before. A word that
// the other side may still change is to be read into a variable once. Bytes
// behind the last whole word are left out. A misaligned b panics, the layout of
// a ring having been validated before.
func Words16(b []byte) []uint16 { return words[uint16](b) }

// Words32 returns memory as 32-bit words; see [Words16].
func Words32(b []byte) []uint32 { return words[uint32](b) }

// Words64 returns memory as 64-bit words; see [Words16].
func Words64(b []byte) []uint64 { return words[uint64](b) }

// Pairs64 returns memory as pairs of 64-bit words; see [Words16]. Where there is no
// index, one of the two publishes itself and the other: it is to be loaded and
// stored atomically.
func Pairs64(b []byte) [][2]uint64 { return words[[2]uint64](b) }

func words[T uint16 | uint32 | uint64 | [2]uint64](b []byte) []T {
	var t T
	n := len(b) / int(unsafe.Sizeof(t))
	if n == 0 {
		return nil
	}
	if !Aligned(b, unsafe.Alignof(t)) {
		panic("guestmem: words at a misaligned address")
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// heapBytes returns n zero bytes that begin on a page, with the rest of their
// last page behind them, as in a mapping.
func heapBytes(n int) []byte {
	page := os.Getpagesize()
	b := make([]byte, (n+page-1)&^(page-1)+page)
	lead := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (page - 1)
	return b[lead : lead+n : lead+n]
}

// holds tells whether an address lies in the mapping.
func (m *mapping) holds(addr uintptr) bool {
	return addr-uintptr(unsafe.Pointer(unsafe.SliceData(m.raw))) < uintptr(len(m.raw))
}

// guestAddr returns the guest address of a slice of the map's memory.
func (m *Map) guestAddr(b []byte) (uint64, bool) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	for i := range m.slots {
		s := &m.slots[i]
		if off := at - uintptr(unsafe.Pointer(unsafe.SliceData(s.mem))); off < uintptr(len(s.mem)) {
			return s.GuestAddr + uint64(off), true
		}
	}
	return 0, false
}

// logWords returns the aligned words that hold mem, which lies in whole pages of this
// process's; and how many bytes of the first lie before it.
func logWords(mem []byte) (words []uint32, lead uint64) {
	p := unsafe.Pointer(unsafe.SliceData(mem))
	lead = uint64(uintptr(p) & 3)
	n := (int(lead) + len(mem) + 3) / 4
	return unsafe.Slice((*uint32)(unsafe.Add(p, -int(lead))), n), lead
}
