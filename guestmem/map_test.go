package guestmem_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
)

const (
	mib  = uint64(1) << 20
	gib  = uint64(1) << 30
	user = uint64(0x7f55_0000_0000)
	name = "guestmem-test"
)

// file returns a sparse memfd.
func file(t testing.TB, size uint64, flags int) int {
	t.Helper()
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		t.Fatal(err)
	}
	return fd
}

// mapped counts this process's mappings of test files.
func mapped(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), name)
}

// noMappings fails the test if it leaves a mapping behind.
func noMappings(t testing.TB) {
	before := mapped(t)
	t.Cleanup(func() {
		if n := mapped(t); n != before {
			t.Errorf("%d mappings left", n-before)
		}
	})
}

func must(t testing.TB, m *guestmem.Map, err error) *guestmem.Map {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Release)
	return m
}

// TestRefused covers reference case P07: arithmetic that wraps, and overlaps.
func TestRefused(t *testing.T) {
	noMappings(t)
	const size = 16 * mib
	fd, other := file(t, size, 0), file(t, size, 0)
	type regions []guestmem.Region
	tests := []struct {
		name string
		r    regions
		want error
	}{
		{"none", nil, guestmem.ErrRegion},
		{"size plus offset wraps", regions{{Size: 0xfffffffffffff000, UserAddr: user, Offset: 0x2000}}, guestmem.ErrRegion},
		{"guest address wraps", regions{{GuestAddr: 0xfffffffffffff000, Size: 0x2000, UserAddr: user}}, guestmem.ErrRegion},
		{"user address wraps", regions{{Size: 0x2000, UserAddr: 0xfffffffffffff000}}, guestmem.ErrRegion},
		{"empty", regions{{UserAddr: user}}, guestmem.ErrRegion},
		{"offset is huge", regions{{Size: size, UserAddr: user, Offset: 1 << 63}}, guestmem.ErrRegion},
		{"everything is huge", regions{{Size: ^uint64(0), Offset: ^uint64(0)}}, guestmem.ErrRegion},
		{"guest addresses overlap", regions{
			{Size: 8 * mib, UserAddr: user},
			{GuestAddr: 4 * mib, Size: 8 * mib, UserAddr: user + gib},
		}, guestmem.ErrOverlap},
		{"one inside the other", regions{
			{GuestAddr: 4 * mib, Size: mib, UserAddr: user},
			{Size: 8 * mib, UserAddr: user + gib},
		}, guestmem.ErrOverlap},
		{"user addresses overlap", regions{
			{Size: 8 * mib, UserAddr: user},
			{GuestAddr: gib, Size: 8 * mib, UserAddr: user + 8*mib - 1},
		}, guestmem.ErrOverlap},
		{"twice the same", regions{{Size: mib, UserAddr: user}, {Size: mib, UserAddr: user}}, guestmem.ErrOverlap},
		{"beyond the file", regions{{Size: size + 1, UserAddr: user}}, guestmem.ErrFile},
		{"the second beyond the file", regions{
			{Size: mib, UserAddr: user},
			{GuestAddr: gib, Size: mib, UserAddr: user + gib, Offset: size - mib + 1},
		}, guestmem.ErrFile},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fds := []int{fd, other}[:len(tt.r)]
			m, err := guestmem.New(tt.r, fds)
			if err == nil {
				m.Release()
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
	if _, err := guestmem.New([]guestmem.Region{{Size: mib}}, nil); !errors.Is(err, guestmem.ErrRegion) {
		t.Errorf("a region without a file: %v", err)
	}
	// The same file is good for a good table.
	m, err := guestmem.New([]guestmem.Region{{Size: size, UserAddr: user}}, []int{fd})
	must(t, m, err)
}

// TestUnmappable: all or nothing, whatever the second descriptor is.
func TestUnmappable(t *testing.T) {
	noMappings(t)
	good := file(t, mib, 0)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	sealed := file(t, mib, unix.MFD_ALLOW_SEALING)
	if _, err := unix.FcntlInt(uintptr(sealed), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err != nil {
		t.Fatal(err)
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, fd := range []int{pipe[0], pipe[1], null} {
			_ = unix.Close(fd)
		}
	})
	for name, fd := range map[string]int{"pipe": pipe[0], "read-only": sealed, "device": null, "closed": -1} {
		m, err := guestmem.New([]guestmem.Region{
			{Size: mib, UserAddr: user},
			{GuestAddr: gib, Size: mib, UserAddr: user + gib},
		}, []int{good, fd})
		if err == nil {
			m.Release()
		}
		if !errors.Is(err, guestmem.ErrFile) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOffsets covers reference case P06: byte k of a region is byte k of the file
// from its offset on, page aligned or not.
func TestOffsets(t *testing.T) {
	noMappings(t)
	fd := file(t, 16*mib, 0)
	regions := []guestmem.Region{
		{Size: 8*mib - 0x800, UserAddr: user, Offset: 0x800},
		{GuestAddr: 4 * gib, Size: 8 * mib, UserAddr: user + gib, Offset: 8 * mib},
	}
	m, err := guestmem.New(regions, []int{fd, fd})
	must(t, m, err)
	for i, r := range regions {
		for _, k := range []uint64{0, 1, 0x7ff, 0x800, r.Size - 1} {
			want := []byte{byte(k), byte(i + 1)}[:min(2, r.Size-k)]
			if _, err := unix.Pwrite(fd, want, int64(r.Offset+k)); err != nil {
				t.Fatal(err)
			}
			for by, got := range map[string][]byte{
				"guest": slice(t, m.Slice, r.GuestAddr+k, uint64(len(want))),
				"user":  slice(t, m.UserSlice, r.UserAddr+k, uint64(len(want))),
			} {
				if string(got) != string(want) {
					t.Errorf("region %d, byte %#x by %s address: % x, want % x", i, k, by, got, want)
				}
			}
		}
	}
	if got := m.Regions(); len(got) != 2 || got[0] != regions[0] || got[1] != regions[1] {
		t.Errorf("regions %+v", got)
	}
}

func slice(t testing.TB, f func(a, n uint64) ([]byte, bool), addr, n uint64) []byte {
	t.Helper()
	b, ok := f(addr, n)
	if !ok || uint64(len(b)) != n || uint64(cap(b)) != n {
		t.Fatalf("%d bytes at %#x: %d, cap %d, %t", n, addr, len(b), cap(b), ok)
	}
	return b
}

// TestLargeGuest: a mapping costs nothing until it is used.
func TestLargeGuest(t *testing.T) {
	noMappings(t)
	const size = 64 * gib
	m, err := guestmem.New([]guestmem.Region{{GuestAddr: gib, Size: size, UserAddr: user}}, []int{file(t, size, 0)})
	must(t, m, err)
	slice(t, m.Slice, gib+size-1, 1)[0] = 1
	if _, ok := m.Slice(gib+size-1, 2); ok {
		t.Error("a byte behind the end")
	}
	slice(t, m.Slice, gib, size)
}

// TestHugePages maps part of a file of huge pages, whose mappings have to be
// whole huge pages. Without free huge pages nothing may be touched, but mapping
// and unmapping are the same.
func TestHugePages(t *testing.T) {
	before := mapped(t)
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		t.Logf("this kernel has no huge pages of 2 MiB: %v", err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(8*mib)); err != nil {
		t.Fatal(err)
	}
	m, err := guestmem.New([]guestmem.Region{
		{Size: 3 * mib, UserAddr: user},
		{GuestAddr: gib, Size: mib, UserAddr: user + gib, Offset: 5*mib + 0x800},
	}, []int{fd, fd})
	if err != nil {
		t.Fatal(err)
	}
	if n := mapped(t) - before; n == 0 {
		t.Error("not mapped")
	}
	slice(t, m.Slice, 3*mib-1, 1)
	slice(t, m.Slice, gib+mib-1, 1)
	m.Release()
	if n := mapped(t) - before; n != 0 {
		t.Errorf("%d mappings left", n)
	}
}

// TestWith covers ADD_MEM_REG and REM_MEM_REG: maps share what they have in
// common, and each stays as it was.
func TestWith(t *testing.T) {
	before := mapped(t)
	fd := file(t, 64*mib, 0)
	m := guestmem.Empty()
	row := func(i int) guestmem.Region {
		// Every second one, so that the kernel does not merge mappings.
		return guestmem.Region{GuestAddr: uint64(2*i) * mib, Size: 0x1000, UserAddr: user + uint64(2*i)*mib, Offset: uint64(2*i) * 0x1000}
	}
	for i := range guestmem.MaxSlots {
		n, err := m.With(row(i), fd)
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
		m = n
	}
	slice(t, m.Slice, row(0).GuestAddr, 1)[0] = 42
	if _, err := m.With(row(guestmem.MaxSlots), fd); !errors.Is(err, guestmem.ErrRegion) {
		t.Errorf("one region too many: %v", err)
	}
	half := m.Retain()
	for i := guestmem.MaxSlots - 1; i > 0; i -= 2 {
		r := row(i)
		r.Offset = 12345 // not part of a region's name
		n, err := half.Without(r)
		if err != nil {
			t.Fatal(err)
		}
		half.Release()
		half = n
	}
	if _, ok := half.Slice(row(1).GuestAddr, 1); ok {
		t.Error("a removed region is there")
	}
	if b := slice(t, m.Slice, row(1).GuestAddr, 1); b[0] != 0 {
		t.Error("a region of the older map has other bytes")
	}
	if len(m.Regions()) != guestmem.MaxSlots || len(half.Regions()) != guestmem.MaxSlots/2 {
		t.Errorf("%d and %d regions", len(m.Regions()), len(half.Regions()))
	}
	for _, change := range []func(*guestmem.Region){
		func(r *guestmem.Region) { r.Size++ },
		func(r *guestmem.Region) { r.GuestAddr++ },
		func(r *guestmem.Region) { r.UserAddr++ },
	} {
		r := row(0)
		change(&r)
		if _, err := half.Without(r); !errors.Is(err, guestmem.ErrRegion) {
			t.Errorf("removed %+v: %v", r, err)
		}
		if _, err := half.With(r, fd); !errors.Is(err, guestmem.ErrOverlap) {
			t.Errorf("added %+v: %v", r, err)
		}
	}
	if _, err := half.With(row(1), -1); !errors.Is(err, guestmem.ErrFile) {
		t.Errorf("a bad descriptor: %v", err)
	}
	m.Release()
	if b := slice(t, half.Slice, row(0).GuestAddr, 1); b[0] != 42 {
		t.Error("a shared mapping went with the older map")
	}
	half.Release()
	if n := mapped(t); n != before {
		t.Errorf("%d mappings left", n-before)
	}
}

func TestReferences(t *testing.T) {
	before := mapped(t)
	m, err := guestmem.New([]guestmem.Region{{Size: mib, UserAddr: user}}, []int{file(t, mib, 0)})
	if err != nil {
		t.Fatal(err)
	}
	m.Retain().Release()
	slice(t, m.Slice, 0, 1)[0] = 1
	m.Release()
	if n := mapped(t); n != before {
		t.Errorf("%d mappings left", n-before)
	}
	release, retain := m.Release, func() { m.Retain() }
	for i, f := range []func(){retain, release, retain, release} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("use %d of a map that is gone", i)
				}
			}()
			f()
		}()
	}
}
