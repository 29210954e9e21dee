package vhostuser

import (
	"slices"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

func u64(v uint64) []byte { return ne.AppendUint64(nil, v) }

func (s *session) getFeatures(*message) ([]byte, error) {
	return u64(uint64(s.offer())), nil
}

// setFeatures may come again at any time. Without
// VHOST_USER_F_PROTOCOL_FEATURES all rings are enabled; with it none is
// disabled that was enabled. VHOST_F_LOG_ALL comes and goes while rings run.
func (s *session) setFeatures(m *message) ([]byte, error) {
	f := virtio.Features(ne.Uint64(m.payload))
	if extra := f &^ s.offer(); extra != 0 {
		return nil, refuse("features %s are not offered", extra)
	}
	if f.Has(virtio.FeatureLogAll) && s.proto&ProtocolLogSHMFD == 0 {
		return nil, refuse("%s needs protocol feature %s", virtio.FeatureLogAll, ProtocolLogSHMFD)
	}
	const own = virtio.FeatureProtocolFeatures | virtio.FeatureLogAll
	if f&^own != s.features&^own || !s.negotiated {
		for i, r := range s.rings {
			if r.started && r.enabled {
				return nil, refuse("features cannot change while ring %d is started and enabled", i)
			}
		}
		// A front-end that never stops rings, User-Mode Linux for one, has
		// disabled them before its driver negotiates anew.
		for i := range s.rings {
			if _, err := s.stopRing(i); err != nil {
				return nil, err
			}
		}
		if err := s.b.SetFeatures(f &^ own); err != nil {
			return nil, err
		}
	}
	s.switchLog(f.Has(virtio.FeatureLogAll))
	s.features, s.negotiated = f, true
	if !f.Has(virtio.FeatureProtocolFeatures) {
		for i := range s.rings {
			if err := s.enable(i, true); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}

// resetOwner is deprecated: the rings are disabled and nothing else.
func (s *session) resetOwner(*message) ([]byte, error) {
	for i := range s.rings {
		if err := s.enable(i, false); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func (s *session) getProtocolFeatures(*message) ([]byte, error) {
	return u64(uint64(s.b.ProtocolFeatures())), nil
}

func (s *session) setProtocolFeatures(m *message) ([]byte, error) {
	f := ProtocolFeatures(ne.Uint64(m.payload))
	if extra := f &^ s.b.ProtocolFeatures(); extra != 0 {
		return nil, refuse("protocol features %s are not offered", extra)
	}
	s.proto = f
	return nil, nil
}

func (s *session) getQueueNum(*message) ([]byte, error) { return u64(s.b.QueueNum()), nil }

func (s *session) getMaxMemSlots(*message) ([]byte, error) { return u64(guestmem.MaxSlots), nil }

func (s *session) setStatus(m *message) ([]byte, error) {
	v := ne.Uint64(m.payload)
	if v > 0xff {
		return nil, refuse("device status %#x: want 8 bits", v)
	}
	return nil, s.b.SetStatus(uint8(v))
}

func (s *session) getStatus(*message) ([]byte, error) { return u64(uint64(s.b.Status())), nil }

func (s *session) resetDevice(*message) ([]byte, error) {
	err := s.b.ResetDevice()
	for i := range s.rings {
		s.rings[i] = ringState{}
	}
	return nil, err
}

func (s *session) setMTU(m *message) ([]byte, error) {
	return nil, s.b.SetMTU(ne.Uint64(m.payload))
}

func (s *session) sendRARP(m *message) ([]byte, error) {
	return nil, s.b.SendRARP([6]byte(m.payload))
}

func (s *session) setBackendReqFD(m *message) ([]byte, error) {
	if len(m.fds) != 1 {
		return nil, refuse("no descriptor")
	}
	ch, err := newBackendChannel(m.take(0))
	if err != nil {
		return nil, refuse("%w", err)
	}
	s.setChannel(ch)
	return nil, nil
}

// getConfig answers with as many bytes as were asked for, or with an empty
// payload if that cannot be.
func (s *session) getConfig(m *message) ([]byte, error) {
	off, n := ne.Uint32(m.payload), ne.Uint32(m.payload[4:])
	if n > maxConfig || int(n) != len(m.payload)-configHead {
		return nil, refuse("configuration of %d bytes in a payload of %d", n, len(m.payload))
	}
	b, err := s.b.GetConfig(off, n)
	if err != nil {
		return nil, err
	}
	return append(append(make([]byte, 0, len(m.payload)), m.payload[:configHead]...), b...), nil
}

func (s *session) setConfig(m *message) ([]byte, error) {
	off, n, flags := ne.Uint32(m.payload), ne.Uint32(m.payload[4:]), ne.Uint32(m.payload[8:])
	if int(n) != len(m.payload)-configHead {
		return nil, refuse("configuration of %d bytes in a payload of %d", n, len(m.payload))
	}
	return nil, s.b.SetConfig(off, flags, m.payload[configHead:])
}

// setMemTable builds the new table whole; until it is known to be good the old
// one stays.
func (s *session) setMemTable(m *message) ([]byte, error) {
	n := ne.Uint32(m.payload)
	switch {
	case n == 0 || n > guestmem.MaxTableRegions:
		return nil, refuse("%d memory regions: want 1 to %d", n, guestmem.MaxTableRegions)
	case len(m.payload) < 8+int(n)*regionSize:
		return nil, refuse("%d memory regions in a payload of %d bytes", n, len(m.payload))
	case len(m.fds) != int(n):
		return nil, refuse("%d memory regions with %d descriptors", n, len(m.fds))
	}
	regions := make([]guestmem.Region, n)
	for i := range regions {
		regions[i] = decodeRegion(m.payload[8+i*regionSize:])
	}
	mem, err := guestmem.New(regions, m.fds)
	if err != nil {
		return nil, refuse("%w", err)
	}
	if err := s.setMemory(mem); err != nil {
		return nil, err
	}
	clear(s.repeats)
	return nil, nil
}

// slot is what REM_MEM_REG knows a region by.
type slot struct{ guestAddr, userAddr, size uint64 }

func slotOf(r guestmem.Region) slot { return slot{r.GuestAddr, r.UserAddr, r.Size} }

// maxRepeats bounds how often a region may be added again: once for each queue
// pair that a front-end can have.
const maxRepeats = 1 << 15

func (s *session) setMemory(mem *guestmem.Map) error {
	if err := s.b.SetMemory(mem); err != nil {
		mem.Release()
		return err
	}
	s.mem.Release()
	s.mem = mem
	return nil
}

func decodeRegion(b []byte) guestmem.Region {
	return guestmem.Region{
		GuestAddr: ne.Uint64(b), Size: ne.Uint64(b[8:]), UserAddr: ne.Uint64(b[16:]), Offset: ne.Uint64(b[24:]),
	}
}

func (s *session) addMemReg(m *message) ([]byte, error) {
	if len(m.fds) != 1 {
		return nil, refuse("no descriptor")
	}
	r := decodeRegion(m.payload[8:])
	if key := slotOf(r); slices.Contains(s.mem.Regions(), r) && s.repeats[key] < maxRepeats {
		// QEMU before 8.0 adds every region once for each queue pair, and removes
		// it as often. What repeats a region to the letter changes nothing.
		s.repeats[key]++
		return nil, nil
	}
	mem, err := s.mem.With(r, m.fds[0])
	if err != nil {
		return nil, refuse("%w", err)
	}
	return nil, s.setMemory(mem)
}

// remMemReg may come with a descriptor, which means nothing.
func (s *session) remMemReg(m *message) ([]byte, error) {
	r := decodeRegion(m.payload[8:])
	if key := slotOf(r); s.repeats[key] > 0 {
		// What is back to zero goes, or the front-end decides how many there are.
		if s.repeats[key]--; s.repeats[key] == 0 {
			delete(s.repeats, key)
		}
		return nil, nil
	}
	mem, err := s.mem.Without(r)
	if err != nil {
		return nil, refuse("%w", err)
	}
	return nil, s.setMemory(mem)
}
