package guestmem_test

import (
	"sync"
	"testing"

	"github.com/vhostnet/vhostnet/guestmem"
)

func TestView(t *testing.T) {
	m := heap(t, guestmem.Region{Size: 0x1000, UserAddr: user})
	b := slice(t, m.Slice, 0, 64)
	for i := range b {
		b[i] = byte(i)
	}
	for _, lead := range []int{0, 2, 4, 6} {
		v := guestmem.NewView(b[lead:])
		if v.Len() != 64-lead {
			t.Errorf("length %d", v.Len())
		}
		for off := 0; off < v.Len(); off += 2 {
			at := lead + off
			if got, want := v.Load16(off), uint16(at)|uint16(at+1)<<8; got != want {
				t.Errorf("Load16(%d) at %d: %#x, want %#x", off, lead, got, want)
			}
		}
	}
	v := guestmem.NewView(b)
	if got := v.Load32(8); got != 0x0b0a0908 {
		t.Errorf("Load32: %#x", got)
	}
	if got := v.Load64(16); got != 0x1716151413121110 {
		t.Errorf("Load64: %#x", got)
	}
	v.Store32(8, 0x11223344)
	v.Store64(16, 0x1122334455667788)
	v.Put32(24, 0xa1b2c3d4)
	if v.Load32(8) != 0x11223344 || b[8] != 0x44 || b[7] != 7 || b[12] != 12 {
		t.Errorf("Store32: % x", b[4:16])
	}
	if v.Load64(16) != 0x1122334455667788 || v.Load32(24) != 0xa1b2c3d4 || b[28] != 28 {
		t.Errorf("Store64, Put32: % x", b[16:32])
	}
	if w := guestmem.Words16(b[8:13]); len(w) != 2 || w[0] != 0x3344 || w[1] != 0x1122 {
		t.Errorf("Words16: %#x", w)
	}
	if w := guestmem.Words32(b[8:12]); len(w) != 1 || w[0] != 0x11223344 {
		t.Errorf("Words32: %#x", w)
	}
	if w := guestmem.Words64(b[16:24]); len(w) != 1 || w[0] != 0x1122334455667788 {
		t.Errorf("Words64: %#x", w)
	}
	if guestmem.Words64(b[:7]) != nil {
		t.Error("a word of 7 bytes")
	}
	if !guestmem.Aligned(b, 4096) || guestmem.Aligned(b[8:], 16) || !guestmem.Aligned(b[16:], 16) {
		t.Error("Aligned")
	}
}

// TestStore16Merges: the neighbour keeps what its writer stores meanwhile.
func TestStore16Merges(t *testing.T) {
	m := heap(t, guestmem.Region{Size: 0x1000, UserAddr: user})
	v := guestmem.NewView(slice(t, m.Slice, 2, 10)) // fields 2 and 4 share a word
	const rounds = 100_000
	var wg sync.WaitGroup
	for _, off := range []int{2, 4} {
		wg.Go(func() {
			for i := range rounds {
				v.Store16(off, uint16(i))
				if got := v.Load16(off); got != uint16(i) {
					t.Errorf("field %d: %d, stored %d", off, got, i)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestViewBounds(t *testing.T) {
	m := heap(t, guestmem.Region{Size: 0x1000, UserAddr: user})
	b := slice(t, m.Slice, 0, 64)
	v := guestmem.NewView(b[:32])
	for name, f := range map[string]func(){
		"Load16":         func() { v.Load16(32) },
		"Store16":        func() { v.Store16(32, 1) },
		"Load32":         func() { v.Load32(32) },
		"Store32":        func() { v.Store32(-4, 1) },
		"Load64":         func() { v.Load64(28) },
		"Store64":        func() { v.Store64(28, 1) },
		"odd view":       func() { guestmem.NewView(b[1:]) },
		"odd words":      func() { guestmem.Words16(b[1:]) },
		"misaligned":     func() { guestmem.Words64(b[4:]) },
		"view of no one": func() { guestmem.NewView(nil).Load16(0) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}
