package driver

import (
	"testing"
)

// TestRegions: the memory table covers the memory without gaps, and no border
// runs through a ring.
func TestRegions(t *testing.T) {
	for n := 1; n <= maxRegions; n++ {
		for _, size := range []int{2, 256} {
			d := newOffline(t, Config{QueueSize: size, QueuePairs: 2, MemRegions: n}, withControl)
			regions, fds := d.mem.regions(n)
			if len(regions) != n || len(fds) != n {
				t.Fatalf("%d regions with %d descriptors, want %d", len(regions), len(fds), n)
			}
			at := uint64(0)
			for i, r := range regions {
				if r.GuestAddr != guestBase+at || r.UserAddr != userBase+at || r.Offset != at || r.Size == 0 || r.Offset%pageSize != 0 || fds[i] != d.mem.fd {
					t.Errorf("region %d of %d: %+v after %d bytes", i, n, r, at)
				}
				at += r.Size
			}
			if at != uint64(len(d.mem.b)) {
				t.Errorf("%d regions cover %d bytes of %d", n, at, len(d.mem.b))
			}
			for _, q := range d.rings {
				for _, a := range []area{q.descArea, q.availArea, q.usedArea} {
					if end := uint64(a.off + len(a.b)); end > regions[0].Size {
						t.Errorf("virtqueue %d of %d entries lies across a border of %d regions", q.index, q.size, n)
					}
				}
			}
		}
	}
}

func TestStride(t *testing.T) {
	for size, want := range map[int]int{1: 64, 64: 64, 65: 128, 1526: 1536 + 64, 1600: 1600, 2048: 2112, 65562: 65600} {
		if got := stride(size); got != want || got < size || got%cacheLine != 0 {
			t.Errorf("stride(%d) = %d, want %d", size, got, want)
		}
	}
}
