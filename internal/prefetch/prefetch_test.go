package prefetch_test

import (
	"bytes"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/internal/prefetch"
)

// Whatever is asked for, nothing happens to it; also where there is no memory, or
// none that may be touched.
func TestNothingHappens(t *testing.T) {
	page := unix.Getpagesize()
	none, err := unix.Mmap(-1, 0, 2*page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(none)
	gone, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mprotect(gone, unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(gone)
	guard := []byte("guard")
	b := bytes.Repeat([]byte{7}, 4096)
	want := bytes.Clone(b)
	for n := range 70 {
		bufs := [][]byte{guard, nil, {}, none, none[page-1:], gone, b[:n:n], b[n:], b[len(b)-1:]}
		for i := range len(bufs) + 1 {
			for range n {
				prefetch.Read(bufs[:i])
				prefetch.Write(bufs[:i])
			}
		}
	}
	if !bytes.Equal(b, want) || string(guard) != "guard" {
		t.Error("memory has changed")
	}
}

func BenchmarkWrite(b *testing.B) {
	for _, n := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			bufs := make([][]byte, n)
			for i := range bufs {
				bufs[i] = make([]byte, 2048)
			}
			for b.Loop() {
				prefetch.Write(bufs)
			}
		})
	}
}
