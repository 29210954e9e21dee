package coalesce

import "fmt"

// Limits are the two notification limits of a virtqueue (struct
// virtio_net_ctrl_coal of virtio 1.4). A notification is due as soon as either
// is reached, counted from the first packet after the last notification.
//
// The zero value notifies after every packet, which is where a device starts.
type Limits struct {
	// Usecs is the longest delay in microseconds, 0 to 2^32-1. 0 means after
	// every packet, not "for ever".
	Usecs uint32 `json:"usecs"`
	// Packets is the largest number of packets announced late, 0 to 2^32-1.
	// 0 and 1 mean after every packet, not "any number".
	Packets uint32 `json:"packets"`
}

// EveryPacket tells whether the limits ask for a notification after every
// packet: either limit is zero, or the packet limit is one.
func (l Limits) EveryPacket() bool { return l.Usecs == 0 || l.Packets <= 1 }

// String returns the limits as USECS/PACKETS, for example "64us/32".
func (l Limits) String() string { return fmt.Sprintf("%dus/%d", l.Usecs, l.Packets) }

// Effective joins what the driver asked for with the host's policy. The result
// is what a [Moderator] is to apply; VQ_GET goes on reporting guest.
//
// The zero host means that the host has no policy: the driver's limits apply. A
// host that insists on a notification per packet says so with {0, 1}.
//
// Limits of the driver that coalesce are a ceiling: the host may notify sooner,
// never later, so each component is the smaller one. Limits of the driver that
// ask for every packet are the default of Linux, and it repeats them for one
// direction whenever the other one is changed. They leave the host free unless
// strict, which takes them at their word.
func Effective(guest, host Limits, strict bool) Limits {
	switch {
	case host == Limits{}:
		return guest
	case guest.EveryPacket() && strict:
		return guest
	case guest.EveryPacket():
		return host
	case host.EveryPacket():
		return host
	}
	return Limits{Usecs: min(guest.Usecs, host.Usecs), Packets: min(guest.Packets, host.Packets)}
}
