package guestmem

import (
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func logFile(t testing.TB, size int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestLogBits: bit n%8 of byte n/8, wherever in the file the log begins, and no
// other byte of it.
func TestLogBits(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		offset := rapid.IntRange(0, 5000).Draw(r, "offset")
		size := rapid.IntRange(1, 64).Draw(r, "size")
		const fileSize = 6000
		fd := logFile(t, fileSize)
		l, err := NewLog(fd, uint64(size), uint64(offset))
		if err != nil {
			r.Fatal(err)
		}
		defer l.Release()
		want := make([]byte, fileSize)
		for i := range want {
			if i < offset || i >= offset+size {
				want[i] = byte(i) // not the log's
			}
		}
		if _, err := unix.Pwrite(fd, want, 0); err != nil {
			t.Fatal(err)
		}
		top := uint64(size)*8*LogPage - 1
		pages := map[uint64]bool{}
		for range rapid.IntRange(0, 8).Draw(r, "marks") {
			at := rapid.Uint64Range(0, top).Draw(r, "address")
			n := rapid.Uint64Range(0, min(top-at+1, 5*LogPage)).Draw(r, "bytes")
			l.Mark(at, n)
			for a := at; a < at+n; a++ {
				p := a / LogPage
				want[offset+int(p/8)] |= 1 << (p % 8)
				pages[p*LogPage] = true
			}
		}
		got := make([]byte, fileSize)
		if _, err := unix.Pread(fd, got, 0); err != nil {
			r.Fatal(err)
		}
		if !slices.Equal(got, want) {
			r.Fatalf("log % x, want % x", got[offset:offset+size], want[offset:offset+size])
		}
		last := int64(-1)
		l.Take(func(gpa uint64) {
			if !pages[gpa] || int64(gpa) <= last {
				r.Fatalf("took %#x", gpa)
			}
			last = int64(gpa)
			delete(pages, gpa)
		})
		l.Take(func(gpa uint64) { r.Fatalf("took %#x twice", gpa) })
		clear(want[offset : offset+size])
		if _, err := unix.Pread(fd, got, 0); err != nil || !slices.Equal(got, want) {
			r.Fatalf("taking changed what is not the log's, or left something: %v", err)
		}
		if len(pages) != 0 {
			r.Fatalf("%d pages not taken", len(pages))
		}
	})
}

// TestLogBeyond: what the log has no bit for is an error and not lost.
func TestLogBeyond(t *testing.T) {
	l := NewHeapLog(2)
	const end = 16 * LogPage
	for _, c := range []struct{ gpa, n uint64 }{{end, 1}, {end - 1, 2}, {^uint64(0), 1}, {1, ^uint64(0)}, {8, ^uint64(0) - 7}} {
		if l.Covers(c.gpa, c.n) {
			t.Errorf("%+v is covered", c)
		}
		if err := CatchFaults(func() { l.Mark(c.gpa, c.n) }); !errors.Is(err, ErrLog) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	l.Mark(end-1, 1)
	l.Mark(^uint64(0), 0)
	l.Take(func(gpa uint64) {
		if gpa != end-LogPage {
			t.Errorf("took %#x", gpa)
		}
	})
	big, err := NewHeap([]Region{{GuestAddr: LogPage, Size: 15 * LogPage}})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Check(big); err != nil {
		t.Error(err)
	}
	if big, err = NewHeap([]Region{{GuestAddr: LogPage, Size: 15*LogPage + 1}}); err != nil {
		t.Fatal(err)
	}
	if err := l.Check(big); !errors.Is(err, ErrLog) {
		t.Error(err)
	}
}

// TestLogFiles: logs that a hostile front-end could send.
func TestLogFiles(t *testing.T) {
	fd := logFile(t, 0x2000)
	for _, c := range []struct{ size, offset uint64 }{
		{0, 0},
		{0x2001, 0},
		{0x1000, 0x1001},
		{1, 0x2000},
		{^uint64(0), 0},
		{1, ^uint64(0)},
		{^uint64(0), ^uint64(0)},
		{1 << 63, 1 << 63},
		{0x2000, ^uint64(0) - 0xfff},
	} {
		if l, err := NewLog(fd, c.size, c.offset); !errors.Is(err, ErrLog) {
			t.Errorf("%#x: %v, %v", c, l, err)
		}
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	if _, err := NewLog(int(null.Fd()), 0x1000, 0); !errors.Is(err, ErrLog) {
		t.Error(err)
	}
	if _, err := NewLog(-1, 0x1000, 0); !errors.Is(err, ErrLog) {
		t.Error(err)
	}
}

// TestLogShrinks: the file goes away under the log.
func TestLogShrinks(t *testing.T) {
	fd := logFile(t, 0x1000)
	l, err := NewLog(fd, 0x1000, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	l.Mark(0, 1)
	if err := unix.Ftruncate(fd, 0); err != nil {
		t.Fatal(err)
	}
	if err := CatchFaults(func() { l.Mark(0, 1) }); !errors.Is(err, ErrFault) {
		t.Fatal(err)
	}
}

// TestLogMarkBytes: memory of the map, in any region, and other memory.
func TestLogMarkBytes(t *testing.T) {
	m, err := NewHeap([]Region{
		{GuestAddr: 0x10000, Size: 0x2000, UserAddr: 0x100000},
		{GuestAddr: 0x4000, Size: 0x1800, UserAddr: 0x200000},
	})
	if err != nil {
		t.Fatal(err)
	}
	l := NewHeapLog(16)
	take := func() (got []uint64) {
		l.Take(func(gpa uint64) { got = append(got, gpa) })
		return got
	}
	for _, c := range []struct {
		gpa, n uint64
		want   []uint64
	}{
		{0x10fff, 2, []uint64{0x10000, 0x11000}},
		{0x11fff, 1, []uint64{0x11000}},
		{0x4000, 0x1800, []uint64{0x4000, 0x5000}},
		{0x5000, 0, nil},
	} {
		b, ok := m.Slice(c.gpa, c.n)
		if !ok {
			t.Fatal(c)
		}
		l.MarkBytes(m, b)
		if got := take(); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %#x", c, got)
		}
	}
	l.MarkBytes(m, make([]byte, 100))
	if got := take(); got != nil {
		t.Errorf("foreign memory: %#x", got)
	}
}

// TestLogTogether: sides that mark and take at once lose nothing. Whoever takes a
// bit sees what was written before it was set.
func TestLogTogether(t *testing.T) {
	const writers, rounds = 3, 20000
	l := NewHeapLog(1)
	var data [writers]atomic.Uint64
	var seen [writers]uint64
	var wg sync.WaitGroup
	done := make(chan struct{})
	for w := range writers {
		wg.Go(func() {
			for i := range uint64(rounds) {
				data[w].Store(i + 1)
				l.Mark(uint64(w)*LogPage, 1)
			}
		})
	}
	go func() { wg.Wait(); close(done) }()
	take := func() { l.Take(func(gpa uint64) { seen[gpa/LogPage] = data[gpa/LogPage].Load() }) }
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		take()
	}
	for w, n := range seen {
		if n != rounds {
			t.Errorf("writer %d: the last copy has %d of %d", w, n, rounds)
		}
	}
	if n := testing.AllocsPerRun(100, func() { l.Mark(0, 2*LogPage) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
