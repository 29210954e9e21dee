package coalesce

// Settings is what a driver has asked for through the control queue (virtio 1.4,
// "Notifications Coalescing"): a default per direction, set by TX_SET and RX_SET,
// and a value per virtqueue, set by VQ_SET. For a virtqueue the last command
// that concerned it wins, whichever kind it was.
//
// Virtqueues are named by their index: 2i receives and 2i+1 transmits for queue
// pair i. Other indices, the control queue's above all, have no settings.
//
// It belongs to one goroutine.
type Settings struct {
	// all is the direction's default: 0 rx, 1 tx.
	all [2]setting
	vq  []setting
}

type setting struct {
	limits Limits
	// set tells a value of the driver from the zeros after a reset.
	set bool
}

// NewSettings returns the settings of a device with that many queue pairs, all
// zero.
func NewSettings(pairs int) *Settings { return &Settings{vq: make([]setting, 2*pairs)} }

// SetAllRX carries out RX_SET: it applies to every receive virtqueue, in use or not.
func (s *Settings) SetAllRX(l Limits) { s.setAll(0, l) }

// SetAllTX carries out TX_SET: it applies to every transmit virtqueue, in use or not.
func (s *Settings) SetAllTX(l Limits) { s.setAll(1, l) }

func (s *Settings) setAll(direction int, l Limits) {
	s.all[direction] = setting{l, true}
	for i := direction; i < len(s.vq); i += 2 {
		s.vq[i] = s.all[direction]
	}
}

// SetVQ carries out VQ_SET and reports whether the index names a receive or
// transmit virtqueue. That the virtqueue is enabled is for the caller to check.
func (s *Settings) SetVQ(index int, l Limits) bool {
	if !s.valid(index) {
		return false
	}
	s.vq[index] = setting{l, true}
	return true
}

// VQ returns the limits that the driver has set for a virtqueue, as VQ_GET
// reports them. They are zero when it has set none.
func (s *Settings) VQ(index int) Limits {
	if !s.valid(index) {
		return Limits{}
	}
	return s.vq[index].limits
}

// Configured tells whether the limits of a virtqueue come from the driver, as
// opposed to the zeros after a reset.
func (s *Settings) Configured(index int) bool { return s.valid(index) && s.vq[index].set }

// Effective joins the driver's limits of a virtqueue with the host's, see
// [Effective]. Strictness obeys what a driver has said, so it leaves the host
// free as long as the driver has said nothing.
func (s *Settings) Effective(index int, host Limits, strict bool) Limits {
	return Effective(s.VQ(index), host, strict && s.Configured(index))
}

// Reenable is called when a virtqueue that was disabled is enabled again. It
// falls back to its direction's default, or to zero when there is none.
func (s *Settings) Reenable(index int) {
	if s.valid(index) {
		s.vq[index] = s.all[index&1]
	}
}

// Reset carries out a device reset: everything becomes zero.
func (s *Settings) Reset() {
	s.all = [2]setting{}
	clear(s.vq)
}

func (s *Settings) valid(index int) bool { return index >= 0 && index < len(s.vq) }
