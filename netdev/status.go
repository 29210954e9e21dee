package netdev

import (
	"fmt"
	"net"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

// Snapshot returns what the device looks like now. It may be called from any
// goroutine.
func (d *Device) Snapshot() DeviceSnapshot {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := DeviceSnapshot{
		Name: d.cfg.Name, Port: d.port.String(), PortKind: d.port.Kind(), State: StateServing,
		FrontEnd: FrontEndSnapshot{
			Connected: d.online, Connections: d.connects,
			Requests: d.sessions.ByRequest(), Refused: d.sessions.Refused.Load(), Rejected: d.sessions.Rejected.Load(),
			SurplusFDs: d.sessions.SurplusFDs.Load(), ProtocolErrors: d.sessions.ByReason(),
		},
		OfferedFeatures:    d.offered.Names(),
		NegotiatedFeatures: d.features.Names(),
		ProtocolFeatures:   d.ProtocolFeatures().Names(),
		MTU:                d.config.MTU,
		Status:             d.status,
		LinkUp:             d.config.Status&virtio.NetStatusLinkUp != 0,
		Speed:              d.config.Speed,
		QueuePairs:         len(d.pairs),
		ActiveQueuePairs:   d.activePairs(),
		GuestOffloads:      d.guest.offloads.Names(),
		RingFormat:         vring.Config{Features: d.features}.Format(),
		Control:            d.control.snapshot(),
		Filter:             d.filterSnapshot(),
		Counters:           map[string]uint64{},
	}
	s.Steering = d.steering
	if g := d.guest.steer; g != nil {
		s.HashTypes = g.types
	}
	if p, ok := d.port.(port.IOMethod); ok {
		s.PortIO = p.IO()
	}
	if p, ok := d.port.(port.Counter); ok {
		s.PortCounters = p.Counters()
	}
	if p, ok := d.port.(port.Health); ok {
		if err := p.Err(); err != nil {
			s.State, s.Error = StateFailed, "port: "+err.Error()
		}
	}
	for _, w := range d.pairs {
		if why := w.portError.Load(); why != nil {
			s.State, s.Error = StateFailed, "port: "+*why
			break
		}
	}
	for _, r := range d.mem.Regions() {
		s.FrontEnd.MemoryRegions++
		s.FrontEnd.MemoryBytes += r.Size
	}
	if d.guest.mac != [6]byte{} {
		s.MAC = net.HardwareAddr(d.guest.mac[:]).String()
	}
	for i := range d.rings {
		q := d.queueSnapshot(i)
		s.Queues = append(s.Queues, q)
		s.Counters[q.Kind+"_packets"] += q.Packets
		s.Counters[q.Kind+"_bytes"] += q.Bytes
		s.Counters[q.Kind+"_kicks"] += q.Kicks
		s.Counters[q.Kind+"_calls"] += q.Calls
		s.Counters[q.Kind+"_calls_suppressed"] += q.CallsSuppressed
		s.Counters["queues_broken"] += d.counters[i].broken.load()
	}
	return s
}

func (d *Device) queueSnapshot(i int) QueueSnapshot {
	c, r := d.counterOf(i), &d.rings[i]
	q := QueueSnapshot{
		Index: i, Kind: d.kind(i), Pair: i / 2, Size: r.size, Started: r.started, Enabled: r.enabled,
		Packets: c.packets.load(), Bytes: c.bytes.load(), Kicks: c.kicks.load(),
		Calls: c.calls.load(), CallsSuppressed: c.suppressed.load(), CallErrors: c.callErrors.load(),
		HandedOver: c.handed.load(),
		Drops:      map[string]uint64{}, CallReasons: map[string]uint64{},
	}
	if e := c.why.Load(); e != nil {
		q.Broken = *e
	}
	for n := range dropReasons {
		if v := c.drops[n].load(); v != 0 {
			q.Drops[dropNames[n]] = v
		}
	}
	for n := range c.headerFaults {
		if v := c.headerFaults[n].load(); v != 0 {
			q.Drops[fmt.Sprintf("%s_%s", dropNames[dropHeader], virtio.HeaderFault(n))] = v
		}
	}
	for n := range c.reasons {
		if v := c.reasons[n].load(); v != 0 {
			q.CallReasons[coalesce.Reason(n).String()] = v
		}
	}
	if i < 2*len(d.pairs) {
		q.Coalesce = CoalesceSnapshot{
			Guest: LimitsSnapshot(d.guest.coalesce.VQ(i)),
			Host:  unpack(c.host.Load()), Effective: unpack(c.inForce.Load()),
			Engine: d.specs[i].String(),
		}
		w := d.pairs[i/2]
		// Between two bursts, so that a decision and what it led to fit together.
		_ = w.post(func() {
			q.Coalesce.Decision = w.ringFor(i).engine.Decision()
			q.Coalesce.Host, q.Coalesce.Effective = unpack(c.host.Load()), unpack(c.inForce.Load())
		})
	}
	return q
}

func (d *Device) kind(i int) string {
	switch {
	case i == 2*len(d.pairs) || d.isControl(i):
		return "control"
	case i&1 == 0:
		return "rx"
	default:
		return "tx"
	}
}

// counterOf returns the counters that ring i uses: the control queue keeps its
// own wherever the negotiated features put it.
func (d *Device) counterOf(i int) *queueCounters {
	if d.isControl(i) {
		return d.control.ring.c
	}
	return &d.counters[i]
}

func (d *Device) filterSnapshot() FilterSnapshot {
	f := d.guest.filter
	s := FilterSnapshot{
		Configured: f.Configured(), Promiscuous: f.Promiscuous(), AllMulti: f.AllMulticast(),
		Unicast: []string{}, Multicast: []string{}, VLANs: f.VLANs(),
	}
	for _, a := range f.Unicast() {
		s.Unicast = append(s.Unicast, net.HardwareAddr(a[:]).String())
	}
	for _, a := range f.Multicast() {
		s.Multicast = append(s.Multicast, net.HardwareAddr(a[:]).String())
	}
	return s
}

func (k *controller) snapshot() ControlSnapshot {
	s := ControlSnapshot{OK: k.ok.load(), Err: k.bad.load(), Commands: map[string]uint64{}}
	if e := k.lastErr.Load(); e != nil && *e != nil {
		s.LastError = (*e).Error()
	}
	for class := range k.commands {
		for cmd := range k.commands[class] {
			if v := k.commands[class][cmd].load(); v != 0 {
				s.Commands[virtio.CtrlName(uint8(class), uint8(cmd))] = v
			}
		}
	}
	return s
}
