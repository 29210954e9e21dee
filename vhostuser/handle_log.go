package vhostuser

import (
	"fmt"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// addrFlagLog in the flags of SET_VRING_ADDR asks for writes to the ring to be logged
// (VHOST_VRING_F_LOG).
const addrFlagLog = 1 << 0

// offer is what the front-end may negotiate.
func (s *session) offer() virtio.Features {
	f := s.b.Features() | virtio.FeatureProtocolFeatures
	if s.b.ProtocolFeatures()&ProtocolLogSHMFD != 0 {
		f |= virtio.FeatureLogAll
	}
	return f
}

// logging tells whether the front-end wants the back-end's writes logged.
func (s *session) logging() bool { return s.features.Has(virtio.FeatureLogAll) }

// setLogBase replaces the dirty log. It has a reply. QEMU does not look at what that
// says, so while logging is on, a log that cannot be used is the end: the front-end
// would go on with a copy of memory that is not one. QEMU sets the features first
// when a device starts amid a migration, and this first otherwise.
func (s *session) setLogBase(m *message) ([]byte, error) {
	l, err := s.openLog(m)
	switch {
	case err != nil && s.logging():
		return nil, violation("log", "dirty log: %w", err)
	case err != nil:
		return nil, refuse("%w", err)
	}
	if s.logging() {
		s.b.SetLog(l)
	}
	s.dirty.Release()
	s.dirty = l
	return nil, nil
}

// openLog maps the log of a message and checks that there is a bit for all memory.
func (s *session) openLog(m *message) (*guestmem.Log, error) {
	if len(m.fds) != 1 {
		return nil, fmt.Errorf("%d descriptors", len(m.fds))
	}
	l, err := guestmem.NewLog(m.fds[0], ne.Uint64(m.payload), ne.Uint64(m.payload[8:]))
	if err != nil {
		return nil, err
	}
	err = l.Check(s.mem)
	for i := range s.rings {
		if err == nil {
			err = s.covered(l, s.rings[i].RingConfig)
		}
	}
	if err != nil {
		l.Release()
		return nil, err
	}
	return l, nil
}

// covered fails if a ring is to be logged where the log has no bit.
func (s *session) covered(l *guestmem.Log, c RingConfig) error {
	if n := s.deviceArea(c); l != nil && c.Log && !l.Covers(c.LogAddr, n) {
		return fmt.Errorf("the log has no bit for %d bytes of a ring at %#x", n, c.LogAddr)
	}
	return nil
}

// setLogFD takes a descriptor on which the back-end may say that it has logged
// something. It does not: front-ends look when they want to know.
func (s *session) setLogFD(*message) ([]byte, error) { return nil, nil }

// switchLog turns logging on or off. What was logged to is let go of then, since it
// need not cover the memory of next time.
func (s *session) switchLog(on bool) {
	switch {
	case on == s.logging():
	case on:
		s.b.SetLog(s.dirty)
	default:
		s.dropLog()
	}
}

func (s *session) dropLog() {
	if s.dirty != nil {
		s.b.SetLog(nil)
		s.dirty.Release()
		s.dirty = nil
	}
}
