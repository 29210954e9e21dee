package driver

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
)

const (
	// guestBase and userBase are where the guest memory begins in guest physical
	// and in front-end user addresses. They differ so that a back-end that mixes
	// the two up is found out; nothing needs to be mapped at userBase.
	guestBase = uint64(1) << 20
	userBase  = uint64(0x7e00) << 32

	maxRegions = guestmem.MaxTableRegions
	pageSize   = 4096
	// cacheLine keeps what the two sides write on lines of their own.
	cacheLine = 64
)

// memory is the guest memory: one memfd, one mapping, and a bump allocator.
type memory struct {
	fd   int
	m    *guestmem.Map
	b    []byte
	used int
	// movable is where the part begins that region borders may cut through:
	// behind the rings, which must each lie inside one region.
	movable int
}

// newMemory makes guest memory of at least size bytes.
func newMemory(size int) (*memory, error) {
	size = roundUp(size, pageSize)
	fd, err := unix.MemfdCreate("vhostnet-guest", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("driver: guest memory: memfd_create: %w", err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("driver: guest memory of %d bytes: %w", size, err)
	}
	whole := guestmem.Region{GuestAddr: guestBase, Size: uint64(size), UserAddr: userBase}
	m, err := guestmem.New([]guestmem.Region{whole}, []int{fd})
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("driver: guest memory: %w", err)
	}
	b, ok := m.Slice(guestBase, uint64(size))
	if !ok {
		m.Release()
		_ = unix.Close(fd)
		return nil, fmt.Errorf("driver: guest memory: %d bytes are not contiguous", size)
	}
	return &memory{fd: fd, m: m, b: b}, nil
}

func (m *memory) close() {
	if m.fd >= 0 {
		m.m.Release()
		_ = unix.Close(m.fd)
		m.fd, m.b = -1, nil
	}
}

// area is a piece of guest memory.
type area struct {
	b   []byte
	off int
}

func (a area) guest() uint64 { return guestBase + uint64(a.off) }
func (a area) user() uint64  { return userBase + uint64(a.off) }

// alloc takes n bytes. That there are enough was computed beforehand.
func (m *memory) alloc(n int) area {
	off := roundUp(m.used, cacheLine)
	m.used = off + n
	return area{m.b[off : off+n : off+n], off}
}

// regions cuts the memory into n adjoining entries of a memory table.
func (m *memory) regions(n int) (regions []guestmem.Region, fds []int) {
	size := len(m.b)
	first := roundUp(m.movable, pageSize)
	start := 0
	for i := range n {
		end := size
		if i < n-1 {
			end = min(roundUp(first+(size-first)/n*(i+1), pageSize), size)
		}
		if end == start {
			continue // less memory than regions
		}
		regions = append(regions, guestmem.Region{
			GuestAddr: guestBase + uint64(start), Size: uint64(end - start),
			UserAddr: userBase + uint64(start), Offset: uint64(start),
		})
		fds = append(fds, m.fd)
		start = end
	}
	return regions, fds
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// stride is the distance between buffers of a size: whole cache lines, and not a
// multiple of the page size or of a good part of it, so that the first lines of
// all buffers do not compete for the same few sets of the cache.
func stride(size int) int {
	s := roundUp(size, cacheLine)
	if s%512 == 0 {
		s += cacheLine
	}
	return s
}
