package guestmem

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
)

// Limits of the vhost-user messages.
const (
	// MaxTableRegions is how many regions SET_MEM_TABLE can carry.
	MaxTableRegions = 8
	// MaxSlots is how many regions a map can have (GET_MAX_MEM_SLOTS).
	MaxSlots = 64
)

// Errors about regions and memory. They are wrapped with what was wrong.
var (
	// ErrRegion: a region's numbers make no sense: zero size, an end beyond
	// 2^64, too many regions, or none that match.
	ErrRegion = errors.New("guestmem: bad region")
	// ErrOverlap: two regions share addresses.
	ErrOverlap = errors.New("guestmem: regions overlap")
	// ErrFile: a descriptor cannot be mapped, or its file is too short.
	ErrFile = errors.New("guestmem: bad memory file")
	// ErrFault: memory that was mapped is gone.
	ErrFault = errors.New("guestmem: memory fault")
)

// Region is one region of guest memory as the vhost-user messages describe it.
// All four are in bytes.
type Region struct {
	// GuestAddr is where the guest sees it (guest physical address).
	GuestAddr uint64
	Size      uint64
	// UserAddr is where the front-end sees it; ring addresses are given so.
	UserAddr uint64
	// Offset is where it begins in the file. It need not be page aligned.
	Offset uint64
}

// check refuses numbers that wrap around.
func (r Region) check() error {
	const top = ^uint64(0)
	switch {
	case r.Size == 0:
		return fmt.Errorf("%w: size 0", ErrRegion)
	case r.Size-1 > top-r.GuestAddr, r.Size-1 > top-r.UserAddr, r.Size > uint64(maxInt)-pageSlack,
		r.Offset > uint64(maxInt)-pageSlack, r.Size > uint64(maxInt)-pageSlack-r.Offset:
		return fmt.Errorf("%w: size %#x at guest %#x, user %#x, offset %#x wraps around",
			ErrRegion, r.Size, r.GuestAddr, r.UserAddr, r.Offset)
	}
	return nil
}

const (
	maxInt = int(^uint(0) >> 1)
	// pageSlack is the most that rounding to (huge) pages can add.
	pageSlack = 2 << 30
	// maxHeap bounds what a test can make of a region by mistake.
	maxHeap = 1 << 31
)

// overlaps tells whether two regions share a guest or a front-end address.
func (r Region) overlaps(o Region) bool {
	return meet(r.GuestAddr, o.GuestAddr, r.Size, o.Size) || meet(r.UserAddr, o.UserAddr, r.Size, o.Size)
}

func meet(a, b, na, nb uint64) bool { return a-b < nb || b-a < na }

// slot is a region with its memory. Several maps may share a mapping.
type slot struct {
	Region
	mem []byte
	m   *mapping
}

// mapping is a piece of a process's address space.
type mapping struct {
	refs  atomic.Int64
	raw   []byte
	unmap func([]byte) error // nil: on the heap
}

func (m *mapping) release() {
	if m.refs.Add(-1) == 0 && m.unmap != nil {
		live.remove(m)
		_ = m.unmap(m.raw)
	}
}

// Map is an immutable table of regions. Its methods may be called from any
// goroutine that holds a reference. Slices that it returns are valid as long as
// the reference is held.
type Map struct {
	refs  atomic.Int64
	slots []slot
}

// Empty returns a map without regions.
func Empty() *Map { return newMap(nil) }

func newMap(slots []slot) *Map {
	m := &Map{slots: slots}
	m.refs.Store(1)
	return m
}

// New maps regions, 1 to [MaxSlots]; fds[i] is the file of regions[i]. The
// descriptors are the caller's to close, and may be closed at once. It maps all
// or nothing. Errors wrap [ErrRegion], [ErrOverlap] or [ErrFile].
func New(regions []Region, fds []int) (*Map, error) {
	if len(fds) != len(regions) {
		return nil, fmt.Errorf("%w: %d regions with %d files", ErrRegion, len(regions), len(fds))
	}
	return build(regions, func(i int) (slot, error) { return mapFile(regions[i], fds[i]) })
}

// NewHeap makes a map in the process's own memory, where the race detector sees
// every access. For tests.
func NewHeap(regions []Region) (*Map, error) {
	return build(regions, func(i int) (slot, error) {
		if regions[i].Size > maxHeap {
			return slot{}, fmt.Errorf("%w: %#x bytes on the heap", ErrRegion, regions[i].Size)
		}
		b := heapBytes(int(regions[i].Size))
		m := &mapping{raw: b}
		m.refs.Store(1)
		return slot{regions[i], b, m}, nil
	})
}

func build(regions []Region, open func(int) (slot, error)) (*Map, error) {
	if len(regions) == 0 || len(regions) > MaxSlots {
		return nil, fmt.Errorf("%w: %d regions: want 1 to %d", ErrRegion, len(regions), MaxSlots)
	}
	for i, r := range regions {
		if err := r.check(); err != nil {
			return nil, err
		}
		if err := disjoint(r, regions[:i]); err != nil {
			return nil, err
		}
	}
	slots := make([]slot, 0, len(regions))
	for i := range regions {
		s, err := open(i)
		if err != nil {
			for _, s := range slots {
				s.m.release()
			}
			return nil, fmt.Errorf("region %d: %w", i, err)
		}
		slots = append(slots, s)
	}
	return newMap(slots), nil
}

func disjoint(r Region, others []Region) error {
	for _, o := range others {
		if r.overlaps(o) {
			return fmt.Errorf("%w: %+v and %+v", ErrOverlap, r, o)
		}
	}
	return nil
}

// With returns a new map that has r as well (ADD_MEM_REG). The mappings that m
// has are shared. Errors are those of [New].
func (m *Map) With(r Region, fd int) (*Map, error) {
	if len(m.slots) >= MaxSlots {
		return nil, fmt.Errorf("%w: all %d slots are taken", ErrRegion, MaxSlots)
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	if err := disjoint(r, m.Regions()); err != nil {
		return nil, err
	}
	s, err := mapFile(r, fd)
	if err != nil {
		return nil, err
	}
	return newMap(append(m.share(nil), s)), nil
}

// Without returns a new map that lacks the region with r's guest address, user
// address and size (REM_MEM_REG); the offset is ignored. The error wraps
// [ErrRegion] if there is none.
func (m *Map) Without(r Region) (*Map, error) {
	i := slices.IndexFunc(m.slots, func(s slot) bool {
		return s.GuestAddr == r.GuestAddr && s.UserAddr == r.UserAddr && s.Size == r.Size
	})
	if i < 0 {
		return nil, fmt.Errorf("%w: no region of %#x bytes at guest %#x, user %#x", ErrRegion, r.Size, r.GuestAddr, r.UserAddr)
	}
	return newMap(m.share(&m.slots[i])), nil
}

// share returns the slots but one, with a further reference to each mapping.
func (m *Map) share(but *slot) []slot {
	out := make([]slot, 0, len(m.slots)+1)
	for i := range m.slots {
		if s := &m.slots[i]; s != but {
			s.m.refs.Add(1)
			out = append(out, *s)
		}
	}
	return out
}

// Retain takes a reference and returns m. The caller must hold one already.
func (m *Map) Retain() *Map {
	if m.refs.Add(1) < 2 {
		m.refs.Add(-1)
		panic("guestmem: Map retained that was released")
	}
	return m
}

// Release gives a reference back; with the last one the memory is unmapped.
func (m *Map) Release() {
	switch n := m.refs.Add(-1); {
	case n == 0:
		for _, s := range m.slots {
			s.m.release()
		}
	case n < 0:
		panic("guestmem: Map released more often than retained")
	}
}

// Regions returns the regions of the map.
func (m *Map) Regions() []Region {
	rs := make([]Region, len(m.slots))
	for i, s := range m.slots {
		rs[i] = s.Region
	}
	return rs
}
