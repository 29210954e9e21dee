package ctrlq

// Handler is the device that commands configure. Each method is one command; an
// error is answered with VIRTIO_NET_ERR and must leave the device as it was.
// [Dispatch] calls at most one method, and only for a command that is well
// formed and whose feature was negotiated. Calls come in the order of the
// commands, and a change has to be in effect when the method returns.
type Handler interface {
	// SetPromisc, SetAllMulti (CTRL_RX), SetAllUni, SetNoMulti, SetNoUni and
	// SetNoBcast (CTRL_RX_EXTRA) turn a receive mode on or off.
	SetPromisc(on bool) error
	SetAllMulti(on bool) error
	SetAllUni(on bool) error
	SetNoMulti(on bool) error
	SetNoUni(on bool) error
	SetNoBcast(on bool) error
	// SetMACTable replaces both address tables (CTRL_RX). The slices may be
	// empty, may hold several thousand addresses, and are valid during the call
	// only.
	SetMACTable(unicast, multicast [][6]byte) error
	// SetMAC sets the device's own address, neither zero nor multicast
	// (CTRL_MAC_ADDR).
	SetMAC(mac [6]byte) error
	// AddVLAN and DelVLAN change the VLAN table (CTRL_VLAN). The id is 0 to
	// 4095; removing one that is not there is no error.
	AddVLAN(id uint16) error
	DelVLAN(id uint16) error
	// AckAnnounce clears the announcement's bit in the configuration space
	// (GUEST_ANNOUNCE).
	AckAnnounce() error
	// SetQueuePairs sets the number of queue pairs in use, 1 to 32768 (MQ). The
	// method checks it against what the device has.
	SetQueuePairs(n uint16) error
	// SetRSS sets how received frames are steered (RSS); it takes the place of
	// what SetQueuePairs set. The method checks the numbers against what the
	// device has. SetHash sets what is reported (HASH_REPORT).
	SetRSS(c RSSConfig) error
	SetHash(c HashConfig) error
	// SetGuestOffloads sets the offloads of received frames to a subset of
	// those negotiated (CTRL_GUEST_OFFLOADS); see virtio.FeaturesFromGuestOffloads.
	SetGuestOffloads(bits uint64) error
	// SetTXCoalesce and SetRXCoalesce set the limits of all transmit or receive
	// queues: microseconds, and packets (NOTF_COAL).
	SetTXCoalesce(usecs, packets uint32) error
	SetRXCoalesce(usecs, packets uint32) error
	// SetVQCoalesce sets those of one virtqueue, and VQCoalesce returns what was
	// set (VQ_NOTF_COAL). Any index arrives here; one that is no enabled
	// transmit or receive queue is an error.
	SetVQCoalesce(vq uint16, usecs, packets uint32) error
	VQCoalesce(vq uint16) (usecs, packets uint32, err error)
	// StatsTypes returns the types of statistics that can be had with the
	// negotiated features, as a bitmap of virtio.Stats numbers, and Stats those of
	// one type of one virtqueue, in the order of the specification's structure
	// (DEVICE_STATS). Stats is called with types of that bitmap only; any index
	// arrives, and one that is no virtqueue, or not of that kind, is an error.
	StatsTypes() uint64
	Stats(vq uint16, kind uint8) ([]uint64, error)
}
