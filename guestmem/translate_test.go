package guestmem_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/vhostnet/vhostnet/guestmem"
)

// heap makes a map whose bytes are numbered by guest page.
func heap(t testing.TB, rs ...guestmem.Region) *guestmem.Map {
	t.Helper()
	m, err := guestmem.NewHeap(rs)
	return must(t, m, err)
}

func TestTranslate(t *testing.T) {
	const top = ^uint64(0) - 0xfff // the last page
	m := heap(t,
		guestmem.Region{GuestAddr: 0x3000, Size: 0x1000, UserAddr: user + 0x9000},
		guestmem.Region{GuestAddr: 0x1000, Size: 0x2000, UserAddr: user},
		guestmem.Region{GuestAddr: 0x8000, Size: 0x10, UserAddr: user + 0x2000},
		guestmem.Region{GuestAddr: 0, Size: 0x10, UserAddr: user + 0x8000},
		guestmem.Region{GuestAddr: top, Size: 0x1000, UserAddr: top},
	)
	tests := []struct {
		gpa, n uint64
		one    bool  // Slice finds it
		pieces []int // AppendSlices finds it so; nil: not at all
	}{
		{0x1000, 0x2000, true, []int{0x2000}},
		{0x1000, 0x3000, false, []int{0x2000, 0x1000}},
		{0x1000, 0x3001, false, nil},
		{0x2fff, 2, false, []int{1, 1}},
		{0x3fff, 1, true, []int{1}},
		{0x3fff, 2, false, nil},
		{0x4000, 1, false, nil},
		{0xfff, 2, false, nil},
		{0x800f, 1, true, []int{1}},
		{0x800f, 2, false, nil},
		{0x9999, 0, false, []int{}},
		{0x1800, 0, true, []int{}},
		{0x1000, ^uint64(0), false, nil},
		{top, 0x1000, true, []int{0x1000}},
		{top, 0x1001, false, nil}, // does not go on at 0
		{^uint64(0) - 7, 64, false, nil},
	}
	room := make([][]byte, 1, 8)
	c := guestmem.NewCursor(m)
	for _, tt := range tests {
		if b, ok := m.Slice(tt.gpa, tt.n); ok != tt.one || uint64(len(b)) != tt.n && ok {
			t.Errorf("Slice(%#x, %#x): %d bytes, %t", tt.gpa, tt.n, len(b), ok)
		}
		got, ok := m.AppendSlices(room, tt.gpa, tt.n)
		if ok != (tt.pieces != nil) || len(got) != 1+len(tt.pieces) {
			t.Errorf("AppendSlices(%#x, %#x): %d pieces, %t", tt.gpa, tt.n, len(got)-1, ok)
			continue
		}
		at := tt.gpa
		for i, n := range tt.pieces {
			if len(got[1+i]) != n || cap(got[1+i]) != n {
				t.Errorf("AppendSlices(%#x, %#x): piece %d of %d bytes", tt.gpa, tt.n, i, len(got[1+i]))
			}
			if p := c.Prefix(at, uint64(n)); len(p) != n || &p[0] != &got[1+i][0] {
				t.Errorf("Prefix(%#x, %#x) is another piece", at, n)
			}
			at += uint64(n)
		}
	}
	for uva, want := range map[uint64]uint64{user: 0x1000, user + 0x1fff: 0x2fff, user + 0x2000: 0x8000, user + 0x9abc: 0x3abc} {
		if gpa, ok := m.UserToGuest(uva); !ok || gpa != want {
			t.Errorf("UserToGuest(%#x): %#x, %t", uva, gpa, ok)
		}
	}
	for _, uva := range []uint64{0, 0x1000, user - 1, user + 0x2010, user + 0xa000} {
		if gpa, ok := m.UserToGuest(uva); ok {
			t.Errorf("UserToGuest(%#x): %#x", uva, gpa)
		}
	}
	// Regions that adjoin for the front-end need not adjoin in memory.
	if _, ok := m.UserSlice(user+0x1fff, 2); ok {
		t.Error("UserSlice across a border")
	}
	if _, ok := m.UserSlice(user+0x1fff, ^uint64(0)); ok {
		t.Error("UserSlice of everything")
	}
}

func TestEmpty(t *testing.T) {
	m := guestmem.Empty()
	defer m.Release()
	if _, ok := m.Slice(0, 1); ok {
		t.Error("memory in an empty map")
	}
	var zero guestmem.Cursor
	c := guestmem.NewCursor(m)
	if c.Prefix(0, 1) != nil || zero.Prefix(0, 1) != nil {
		t.Error("a cursor finds memory in an empty map")
	}
	if base, mem := c.Region(); base != 0 || mem != nil {
		t.Error("a cursor has a region of an empty map")
	}
}

// TestTranslateModel compares translation with a walk over single bytes.
func TestTranslateModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var rs []guestmem.Region
		for gpa := uint64(0); gpa < 200; {
			size := rapid.Uint64Range(1, 40).Draw(t, "size")
			rs = append(rs, guestmem.Region{GuestAddr: gpa, Size: size, UserAddr: user + 1000*uint64(len(rs))})
			gpa += size + rapid.SampledFrom([]uint64{0, 0, 1, 30}).Draw(t, "gap")
		}
		rs = rapid.Permutation(rs).Draw(t, "order")
		m, err := guestmem.NewHeap(rs)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Release()
		byteAt := func(gpa uint64) *byte {
			for _, r := range rs {
				if gpa >= r.GuestAddr && gpa < r.GuestAddr+r.Size {
					b, ok := m.UserSlice(r.UserAddr+gpa-r.GuestAddr, 1)
					if !ok {
						t.Fatalf("user address of %#x", gpa)
					}
					return &b[0]
				}
			}
			return nil
		}
		c := guestmem.NewCursor(m)
		for range 20 {
			gpa, n := rapid.Uint64Range(0, 260).Draw(t, "gpa"), rapid.Uint64Range(0, 90).Draw(t, "n")
			whole := true
			for k := range n {
				whole = whole && byteAt(gpa+k) != nil
			}
			got, ok := m.AppendSlices(nil, gpa, n)
			if ok != whole {
				t.Fatalf("AppendSlices(%d, %d): %t", gpa, n, ok)
			}
			k := uint64(0)
			for _, p := range got {
				for i := range p {
					if &p[i] != byteAt(gpa+k) {
						t.Fatalf("AppendSlices(%d, %d): byte %d is another", gpa, n, k)
					}
					k++
				}
			}
			if ok && k != n {
				t.Fatalf("AppendSlices(%d, %d): %d bytes", gpa, n, k)
			}
			if n == 0 {
				continue
			}
			p := c.Prefix(gpa, n)
			if want := byteAt(gpa); (p == nil) != (want == nil) || p != nil && &p[0] != want || uint64(len(p)) > n {
				t.Fatalf("Prefix(%d, %d): %d bytes", gpa, n, len(p))
			}
			if s, one := m.Slice(gpa, n); one != (ok && len(got) == 1) || one && len(p) != len(s) {
				t.Fatalf("Slice(%d, %d): %t", gpa, n, one)
			}
		}
	})
}

func TestNoAllocations(t *testing.T) {
	m := heap(t, guestmem.Region{Size: 0x1000, UserAddr: user}, guestmem.Region{GuestAddr: 0x1000, Size: 0x1000, UserAddr: user + 0x1000})
	room := make([][]byte, 0, 4)
	c := guestmem.NewCursor(m)
	sum := 0
	if n := testing.AllocsPerRun(100, func() {
		if err := guestmem.CatchFaults(func() {
			room, _ = m.AppendSlices(room[:0], 0xff0, 0x20)
			sum += len(c.Prefix(0x1000, 8)) + len(c.Prefix(0, 8))
		}); err != nil {
			t.Fatal(err)
		}
		m.Retain().Release()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzTable: whatever a table says, it is refused or all its bytes are there,
// once.
func FuzzTable(f *testing.F) {
	const size = 0x10000
	f.Add(uint64(0), uint64(0x1000), user, uint64(0), uint64(0x1000), uint64(0x1000), user+0x1000, uint64(0x1000))
	f.Add(uint64(0), ^uint64(0)-0xfff, user, uint64(0x2000), uint64(0), uint64(0), uint64(0), uint64(0))
	f.Add(^uint64(0)-0xfff, uint64(0x1000), ^uint64(0)-0xfff, uint64(0xf000), uint64(0), uint64(1), uint64(0), uint64(0xffff))
	f.Add(uint64(0), uint64(0x2000), user, uint64(0x800), uint64(0x1fff), uint64(1), user+0x2000, uint64(1)<<63)
	fd := file(f, size, 0)
	f.Fuzz(func(t *testing.T, g0, s0, u0, o0, g1, s1, u1, o1 uint64) {
		rs := []guestmem.Region{{GuestAddr: g0, Size: s0, UserAddr: u0, Offset: o0}, {GuestAddr: g1, Size: s1, UserAddr: u1, Offset: o1}}
		m, err := guestmem.New(rs, []int{fd, fd})
		if err != nil {
			return
		}
		defer m.Release()
		for i, r := range rs {
			if r.Size == 0 || r.Offset >= size || r.Size > size-r.Offset {
				t.Fatalf("region %d of the file: %+v", i, r)
			}
			for _, k := range []uint64{0, r.Size / 2, r.Size - 1} {
				a, b := slice(t, m.Slice, r.GuestAddr+k, 1), slice(t, m.UserSlice, r.UserAddr+k, 1)
				if &a[0] != &b[0] {
					t.Fatalf("region %d, byte %#x: guest and user address differ", i, k)
				}
				a[0]++ // it is there
			}
			slice(t, m.Slice, r.GuestAddr, r.Size)
			if _, ok := m.Slice(r.GuestAddr, r.Size+1); ok {
				t.Fatalf("region %d: a byte behind the end", i)
			}
			if gpa, ok := m.UserToGuest(r.UserAddr + r.Size - 1); !ok || gpa != r.GuestAddr+r.Size-1 {
				t.Fatalf("region %d: last byte at %#x, %t", i, gpa, ok)
			}
		}
	})
}
