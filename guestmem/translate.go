package guestmem

// find returns the region that holds the guest address, nil if none does. There
// are few regions, and rings ask through a Cursor, which remembers the last one.
func (m *Map) find(gpa uint64) *slot {
	for i := range m.slots {
		if s := &m.slots[i]; gpa-s.GuestAddr < s.Size {
			return s
		}
	}
	return nil
}

// Slice returns the n bytes at guest address gpa, if one region holds them all.
func (m *Map) Slice(gpa, n uint64) ([]byte, bool) {
	if s := m.find(gpa); s != nil {
		if off := gpa - s.GuestAddr; n <= s.Size-off {
			return s.mem[off : off+n : off+n], true
		}
	}
	return nil, false
}

// AppendSlices appends the n bytes at guest address gpa to dst, in as many
// slices as regions hold them. It reports false, with dst as it was, if some of
// them lie in no region. n == 0 appends nothing, whatever the address. It
// allocates only when dst has no room.
func (m *Map) AppendSlices(dst [][]byte, gpa, n uint64) ([][]byte, bool) {
	was := len(dst)
	if n > 0 && n-1 > ^gpa {
		return dst, false // goes on at address 0
	}
	for n > 0 {
		s := m.find(gpa)
		if s == nil {
			return dst[:was], false
		}
		off := gpa - s.GuestAddr
		l := min(n, s.Size-off)
		dst = append(dst, s.mem[off:off+l:off+l])
		n -= l
		gpa += l
	}
	return dst, true
}

// UserSlice returns the n bytes at the front-end's address uva, if one region
// holds them all.
func (m *Map) UserSlice(uva, n uint64) ([]byte, bool) {
	for i := range m.slots {
		s := &m.slots[i]
		if off := uva - s.UserAddr; off < s.Size {
			if n <= s.Size-off {
				return s.mem[off : off+n : off+n], true
			}
			return nil, false
		}
	}
	return nil, false
}

// UserToGuest translates a front-end address to the guest's.
func (m *Map) UserToGuest(uva uint64) (uint64, bool) {
	for i := range m.slots {
		s := &m.slots[i]
		if off := uva - s.UserAddr; off < s.Size {
			return s.GuestAddr + off, true
		}
	}
	return 0, false
}

// Cursor translates guest addresses for one goroutine. It remembers the region
// that it found last, which nearly always holds the next buffer too. The zero
// Cursor translates nothing. A Cursor holds no reference to its Map.
type Cursor struct {
	m    *Map
	base uint64
	mem  []byte
}

// NewCursor returns a Cursor on m.
func NewCursor(m *Map) Cursor { return Cursor{m: m} }

// Region returns the region found last, its guest address and its memory, so
// that a loop can do the common case of [Cursor.Prefix] without a call.
func (c *Cursor) Region() (base uint64, mem []byte) { return c.base, c.mem }

// Prefix returns as much of the n bytes at guest address gpa as one region
// holds, and nil if none holds the first of them. The rest of a buffer that
// reaches into an adjoining region takes another call.
func (c *Cursor) Prefix(gpa, n uint64) []byte {
	off := gpa - c.base
	if off >= uint64(len(c.mem)) {
		if c.m == nil {
			return nil
		}
		s := c.m.find(gpa)
		if s == nil {
			return nil
		}
		c.base, c.mem = s.GuestAddr, s.mem
		off = gpa - c.base
	}
	n = min(n, uint64(len(c.mem))-off)
	return c.mem[off : off+n : off+n]
}
