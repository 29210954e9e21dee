package guestmem_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
)

// TestFault: a front-end shrinks its file under every kind of access.
func TestFault(t *testing.T) {
	fd := file(t, mib, 0)
	m, err := guestmem.New([]guestmem.Region{{Size: mib, UserAddr: user}}, []int{fd})
	must(t, m, err)
	b := slice(t, m.Slice, 0x2000, 0x2000)
	v, w := guestmem.NewView(b), guestmem.Words64(b)
	private := make([]byte, len(b))
	sum := uint64(0)
	accesses := map[string]func(){
		"load":      func() { sum += uint64(b[0]) },
		"store":     func() { b[0x1fff] = 1 },
		"word":      func() { sum += w[17] },
		"Load16":    func() { v.Load16(2) },
		"Store16":   func() { v.Store16(2, 1) },
		"Store32":   func() { v.Store32(4, 1) },
		"copy from": func() { copy(private, b) },
		"copy to":   func() { copy(b, private) },
		"clear":     func() { clear(b) },
	}
	if err := unix.Ftruncate(fd, 0x2000); err != nil {
		t.Fatal(err)
	}
	for name, f := range accesses {
		if err := guestmem.CatchFaults(f); !errors.Is(err, guestmem.ErrFault) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What is left works, and so does the rest when the file has grown again.
	slice(t, m.Slice, 0x1fff, 1)[0] = 1
	if err := unix.Ftruncate(fd, int64(mib)); err != nil {
		t.Fatal(err)
	}
	for name, f := range accesses {
		if err := guestmem.CatchFaults(f); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The kernel answers EFAULT to the same.
	if err := unix.Ftruncate(fd, 0x2000); err != nil {
		t.Fatal(err)
	}
	r, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer pw.Close()
	if _, err := pw.Write(b[:16]); !errors.Is(err, unix.EFAULT) {
		t.Errorf("write of memory that is gone: %v", err)
	}
}

// TestFaultOfOurs: what is not a fault in guest memory is not taken for one.
func TestFaultOfOurs(t *testing.T) {
	private, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(private) }()
	var null *int
	var none []int
	for name, f := range map[string]func(){
		"panic":                func() { panic("mine") },
		"error":                func() { panic(errors.New("mine")) },
		"nil":                  func() { *null = 1 },
		"index":                func() { none[len(none)]++ },
		"memory of no guest's": func() { private[0] = 1 },
	} {
		got := func() (p any) {
			defer func() { p = recover() }()
			t.Errorf("%s: returned %v", name, guestmem.CatchFaults(f))
			return nil
		}()
		if got == nil {
			t.Errorf("%s: the panic is lost", name)
		}
	}
	if err := guestmem.CatchFaults(func() {}); err != nil {
		t.Errorf("nothing: %v", err)
	}
}

// TestNestedFault: the inner call takes the fault, and the outer one still works.
func TestNestedFault(t *testing.T) {
	fd := file(t, mib, 0)
	m, err := guestmem.New([]guestmem.Region{{Size: mib, UserAddr: user}}, []int{fd})
	must(t, m, err)
	b := slice(t, m.Slice, 0, mib)
	if err := unix.Ftruncate(fd, 0); err != nil {
		t.Fatal(err)
	}
	touch := func() { b[0] = 1 }
	var inner error
	outer := guestmem.CatchFaults(func() {
		inner = guestmem.CatchFaults(touch)
		touch()
	})
	if !errors.Is(inner, guestmem.ErrFault) || !errors.Is(outer, guestmem.ErrFault) {
		t.Errorf("inner %v, outer %v", inner, outer)
	}
}
