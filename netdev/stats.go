package netdev

import (
	"fmt"

	"github.com/vhostnet/vhostnet/virtio"
)

// StatsTypes implements [ctrlq.Handler]. Types whose features were not negotiated
// are left out, since asking for them is an error, and Linux asks for all that it
// is told of.
func (c *commands) StatsTypes() uint64 {
	d, unlock := c.lock()
	defer unlock()
	types := uint64(1<<virtio.StatsRXBasic | 1<<virtio.StatsTXBasic | 1<<virtio.StatsCVQ)
	for _, t := range []struct {
		kind  int
		anyOf virtio.Features
	}{
		{virtio.StatsRXCSum, virtio.FeatureGuestCSum},
		{virtio.StatsRXGSO, virtio.FeatureGuestTSO4 | virtio.FeatureGuestTSO6},
		{virtio.StatsRXSpeed, virtio.FeatureSpeedDuplex},
		{virtio.StatsTXCSum, virtio.FeatureCSum},
		{virtio.StatsTXGSO, virtio.FeatureHostTSO4 | virtio.FeatureHostTSO6 | virtio.FeatureHostUSO},
		{virtio.StatsTXSpeed, virtio.FeatureSpeedDuplex},
	} {
		if d.features&t.anyOf != 0 {
			types |= 1 << t.kind
		}
	}
	return types
}

// Stats implements [ctrlq.Handler]. Counters go on from one driver to the next.
func (c *commands) Stats(vq uint16, kind uint8) ([]uint64, error) {
	d, unlock := c.lock()
	defer unlock()
	i := int(vq)
	var of string
	switch {
	case d.isControl(i):
		of = "control"
	case d.hasWorker(i):
		of = d.kind(i)
	default:
		return nil, fmt.Errorf("netdev: there is no virtqueue %d", vq)
	}
	q, o := d.counterOf(i), &d.counterOf(i).offloads
	switch {
	case of == "rx" && kind == virtio.StatsRXBasic:
		return []uint64{q.kicks.load(), q.packets.load(), q.bytes.load(), q.calls.load(), q.dropped(), q.drops[dropNoBuffer].load()}, nil
	case of == "rx" && kind == virtio.StatsRXCSum:
		// Nobody says that a checksum is bad; such a frame says nothing.
		return []uint64{o.valid.load(), o.partial.load(), q.plain(), 0}, nil
	case of == "rx" && kind == virtio.StatsRXGSO:
		// What is coalesced was so when the port gave it.
		return []uint64{o.gso.load(), o.gsoBytes.load(), 0, 0}, nil
	case of == "tx" && kind == virtio.StatsTXBasic:
		malformed := q.dropped(dropMalformed, dropRunt, dropOversize, dropHeader)
		return []uint64{q.kicks.load(), q.packets.load(), q.bytes.load(), q.calls.load(), q.dropped(), malformed}, nil
	case of == "tx" && kind == virtio.StatsTXCSum:
		return []uint64{q.plain(), o.partial.load()}, nil
	case of == "tx" && kind == virtio.StatsTXGSO:
		// The device segments nothing: the port gets frames as they are.
		gso, bytes := o.gso.load(), o.gsoBytes.load()
		return []uint64{gso, bytes, 0, 0, gso, bytes}, nil
	case of == "rx" && kind == virtio.StatsRXSpeed, of == "tx" && kind == virtio.StatsTXSpeed:
		return []uint64{0, 0}, nil // there is no limit
	case of == "control" && kind == virtio.StatsCVQ:
		// This command is among them, and it is carried out.
		ok := d.control.ok.load() + 1
		return []uint64{ok + d.control.bad.load(), ok}, nil
	}
	return nil, fmt.Errorf("netdev: virtqueue %d has no statistics of type %d", vq, kind)
}

// dropped is how many frames were lost for the given reasons, or for any.
func (c *queueCounters) dropped(reasons ...dropReason) (n uint64) {
	if len(reasons) == 0 {
		for i := range c.drops {
			n += c.drops[i].load()
		}
		return n
	}
	for _, r := range reasons {
		n += c.drops[r].load()
	}
	return n
}

// plain is how many frames had a header that says nothing of a checksum. The
// counters are not of one moment.
func (c *queueCounters) plain() uint64 {
	n, said := c.packets.load(), c.offloads.valid.load()+c.offloads.partial.load()
	return n - min(n, said)
}
