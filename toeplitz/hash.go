package toeplitz

import "encoding/binary"

const (
	// MinKey is the shortest key in bytes that a device must take.
	MinKey = 40
	// MaxInput is the most bytes that are hashed: two IPv6 addresses, two ports.
	MaxInput = 2*16 + 2*2
	// window is how many bytes of a key the longest input uses.
	window = MaxInput + 4
)

// Hasher computes hashes with one key. It does not change once it is made, so
// any number of goroutines may use it.
type Hasher struct {
	// table[i][b] is what byte b at position i adds to the hash.
	table [MaxInput][256]uint32
}

// New makes a hasher. Of a key only the first 40 bytes matter, since no input is
// longer than 36; a shorter one is continued with zeros.
func New(key []byte) *Hasher {
	var k [window]byte
	copy(k[:], key)
	h := new(Hasher)
	for i := range h.table {
		w := uint64(binary.BigEndian.Uint32(k[i:]))<<8 | uint64(k[i+4])
		t := &h.table[i]
		for bit := range 8 {
			// The bit that comes first is the most significant one.
			t[0x80>>bit] = uint32(w >> (8 - bit))
		}
		for b := range t {
			if low := b & -b; b != low {
				t[b] = t[low] ^ t[b^low]
			}
		}
	}
	return h
}

// Sum returns the hash of b, of which [MaxInput] bytes count at most. It does not
// allocate.
func (h *Hasher) Sum(b []byte) uint32 {
	var sum uint32
	for i, v := range b[:min(len(b), MaxInput)] {
		sum ^= h.table[i][v]
	}
	return sum
}

// Table returns what byte b at position i of an input adds to the hash, for who
// computes it elsewhere.
func (h *Hasher) Table(i int, b byte) uint32 { return h.table[i][b] }
