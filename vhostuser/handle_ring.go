package vhostuser

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// state reads a vring state and finds the ring.
func (s *session) state(m *message) (i int, r *ringState, num uint32, err error) {
	index := ne.Uint32(m.payload)
	r, err = s.ring(index)
	return int(index), r, ne.Uint32(m.payload[4:]), err
}

// setup readies a ring for new parameters: one that is started but disabled is
// stopped, since some front-ends never do; one in use is left alone.
func (s *session) setup(i int, r *ringState) error {
	switch {
	case !r.started:
		return nil
	case r.enabled:
		return refuse("ring %d is started and enabled", i)
	}
	_, err := s.stopRing(i)
	return err
}

func (s *session) setVringNum(m *message) ([]byte, error) {
	i, r, num, err := s.state(m)
	if err != nil {
		return nil, err
	}
	switch {
	case num < 1 || num > 32768:
		return nil, refuse("ring %d: size %d: want 1 to 32768", i, num)
	case num&(num-1) != 0 && !s.packed():
		return nil, refuse("ring %d: size %d: want a power of two for a split ring", i, num)
	}
	if err := s.setup(i, r); err != nil {
		return nil, err
	}
	r.Size = int(num)
	return nil, nil
}

func (s *session) setVringBase(m *message) ([]byte, error) {
	i, r, num, err := s.state(m)
	if err != nil {
		return nil, err
	}
	if num > 0xffff && !s.packed() {
		return nil, refuse("ring %d: base %#x: want 16 bits for a split ring", i, num)
	}
	if err := s.setup(i, r); err != nil {
		return nil, err
	}
	r.Base = num
	return nil, nil
}

func (s *session) setVringAddr(m *message) ([]byte, error) {
	index := ne.Uint32(m.payload)
	r, err := s.ring(index)
	if err != nil {
		return nil, err
	}
	c := r.RingConfig
	c.Desc, c.Device, c.Driver = ne.Uint64(m.payload[8:]), ne.Uint64(m.payload[16:]), ne.Uint64(m.payload[24:])
	c.Log, c.LogAddr = ne.Uint32(m.payload[4:])&addrFlagLog != 0, ne.Uint64(m.payload[32:])
	if err := errors.Join(s.locate(c), s.covered(s.dirty, c)); err != nil {
		return nil, refuse("ring %d: %w", index, err)
	}
	if r.started {
		if err := s.b.SetRingAddr(int(index), c); err != nil {
			return nil, err
		}
	}
	r.RingConfig, r.located = c, true
	return nil, nil
}

// packed tells whether rings are packed ones.
func (s *session) packed() bool { return s.features.Has(virtio.FeatureRingPacked) }

// deviceArea is the size in bytes of a ring's device area: the used ring, or a
// packed ring's event structure.
func (s *session) deviceArea(c RingConfig) uint64 {
	if s.packed() {
		return 4
	}
	return 6 + 8*uint64(max(c.Size, 1))
}

// locate checks that the areas of a ring lie in the memory table.
func (s *session) locate(c RingConfig) error {
	n := uint64(max(c.Size, 1))
	type area struct {
		name              string
		addr, size, align uint64
	}
	areas := [...]area{
		{"descriptor table", c.Desc, 16 * n, 16},
		{"available ring", c.Driver, 6 + 2*n, 2},
		{"used ring", c.Device, s.deviceArea(c), 4},
	}
	if s.packed() {
		areas[1] = area{"driver event structure", c.Driver, 4, 4}
		areas[2] = area{"device event structure", c.Device, 4, 4}
	}
	for _, a := range areas {
		b, ok := s.mem.UserSlice(a.addr, a.size)
		switch {
		case !ok:
			return fmt.Errorf("%s of %d bytes at %#x is not in one memory region", a.name, a.size, a.addr)
		case a.addr%a.align != 0 || !guestmem.Aligned(b, uintptr(a.align)):
			return fmt.Errorf("%s at %#x is not aligned to %d bytes", a.name, a.addr, a.align)
		}
	}
	return nil
}

// getVringBase stops the ring. Asked again, or of a ring that was never started,
// it answers the same. An index that does not exist gets an answer that is none:
// the front-end waits for one.
func (s *session) getVringBase(m *message) ([]byte, error) {
	i, _, _, err := s.state(m)
	base := ^uint32(0)
	if err == nil {
		base, err = s.stopRing(i)
	}
	reply := ne.AppendUint32(nil, ne.Uint32(m.payload))
	return ne.AppendUint32(reply, base), err
}

func (s *session) setVringEnable(m *message) ([]byte, error) {
	i, _, num, err := s.state(m)
	if err != nil {
		return nil, err
	}
	if num > 1 {
		return nil, refuse("ring %d: enable %d: want 0 or 1", i, num)
	}
	return nil, s.enable(i, num == 1)
}

// noFD says in the payload of a descriptor message that there is none.
const noFD = 1 << 8

// ringFD reads a message that carries a ring's descriptor, and makes it
// non-blocking.
func (s *session) ringFD(m *message) (i, fd int, err error) {
	v := ne.Uint64(m.payload)
	if v > 0xff|noFD {
		return 0, -1, refuse("ring and flags %#x: want 9 bits", v)
	}
	if _, err := s.ring(uint32(v & 0xff)); err != nil {
		return 0, -1, err
	}
	i = int(v & 0xff)
	switch none := v&noFD != 0; {
	case none && len(m.fds) == 0:
		return i, -1, nil
	case none || len(m.fds) != 1:
		return 0, -1, refuse("ring %d: %d descriptors", i, len(m.fds))
	}
	if err := unix.SetNonblock(m.fds[0], true); err != nil {
		return 0, -1, refuse("ring %d: descriptor: %w", i, err)
	}
	return i, m.take(0), nil
}

// setVringKick starts the ring: it need not wait for a kick to arrive.
func (s *session) setVringKick(m *message) ([]byte, error) {
	i, fd, err := s.ringFD(m)
	if err != nil {
		return nil, err
	}
	r := &s.rings[i]
	switch {
	case r.started:
		return nil, s.b.SetRingKick(i, fd)
	case r.Size == 0 || !r.located:
		closeFDs([]int{fd})
		return nil, refuse("ring %d has no size or no addresses", i)
	}
	if err := s.b.StartRing(i, r.RingConfig, fd); err != nil {
		return nil, refuse("ring %d: %w", i, err)
	}
	r.started = true
	return nil, nil
}

func (s *session) setVringCall(m *message) ([]byte, error) {
	i, fd, err := s.ringFD(m)
	if err != nil {
		return nil, err
	}
	return nil, s.b.SetRingCall(i, fd)
}

func (s *session) setVringErr(m *message) ([]byte, error) {
	i, fd, err := s.ringFD(m)
	if err != nil {
		return nil, err
	}
	return nil, s.b.SetRingErr(i, fd)
}
