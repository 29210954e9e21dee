package guestmem

import (
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
	w := v.words[(off+v.lead)>>2:]
	_ = w[1]
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(w))))
}

// Store64 stores 64 bits at off; off must be 8-aligned in memory.
func (v View) Store64(off int, x uint64) {
	w := v.words[(off+v.lead)>>2:]
	_ = w[1]
	atomic.StoreUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(w))), x)
}

// Aligned reports whether b begins at a multiple of n, a power of two, in this
// process's memory.
func Aligned(b []byte, n uintptr) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))&(n-1) == 0
}

// heapBytes returns n zero bytes, aligned and padded to 64 bytes as a View of
// any part of them needs.
func heapBytes(n int) []byte {
	lines := make([][8]uint64, (n+63)/64)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(lines))), n)
}
