package vswitch

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

const (
	// MaxPorts is the most ports of a switch.
	MaxPorts = 4096
	// MaxQueues is the most queues of a port: those of the largest device.
	MaxQueues = 127
	// MaxName is the longest name of a switch in bytes.
	MaxName = 64
)

// offloads are what a port offers. What a receiver cannot take is done on the way.
const offloads = virtio.FeatureCSum | virtio.FeatureHostTSO4 | virtio.FeatureHostTSO6 | virtio.FeatureHostECN |
	virtio.FeatureGuestCSum | virtio.FeatureGuestTSO4 | virtio.FeatureGuestTSO6 | virtio.FeatureGuestECN

// epoch is when the process began, for the age of addresses.
var epoch = time.Now()

// Set is the switches of a process. The zero value is an empty one. Its methods may
// be called from any goroutine.
type Set struct {
	mu       sync.Mutex
	switches map[string]*Switch
	// clock is the time in seconds, nil for that of the machine.
	clock func() uint32
}

// Switch is one of them; it has no more to offer than its ports.
type Switch struct {
	name  string
	clock func() uint32

	// mu is for whoever adds or removes a port, or changes who has a slot of the
	// table.
	mu sync.Mutex
	// ports are the ports by number, nil where there is none; the list is never
	// changed, but replaced. No port has number 0.
	ports atomic.Pointer[[]*Port]
	table table
}

// Check tells what is wrong with a switch's name, nil for nothing: it has 1 to
// [MaxName] letters, digits, dots, hyphens and underscores.
func Check(name string) error {
	ok := len(name) >= 1 && len(name) <= MaxName
	for _, c := range []byte(name) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_')
	}
	if !ok {
		return fmt.Errorf("vswitch: name %q: want 1 to %d letters, digits, dots, hyphens and underscores", name, MaxName)
	}
	return nil
}

// Open adds a port with 1 to [MaxQueues] queues to the switch of that name, which
// begins with it if there is none.
func (s *Set) Open(name string, queues int) (*Port, error) {
	if err := Check(name); err != nil {
		return nil, err
	}
	if queues < 1 || queues > MaxQueues {
		return nil, fmt.Errorf("vswitch: open %s: %d queues: want 1 to %d", name, queues, MaxQueues)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sw := s.switches[name]
	if sw == nil {
		sw = &Switch{name: name, clock: s.clock}
		if sw.clock == nil {
			sw.clock = func() uint32 { return uint32(time.Since(epoch) / time.Second) }
		}
		sw.ports.Store(&[]*Port{nil})
	}
	p := &Port{set: s, sw: sw}
	p.hdrLen.Store(virtio.NetHeaderLen)
	p.active.Store(new([]*inbox))
	for range queues {
		b, err := newBell()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("vswitch: open %s: eventfd: %w", name, err), p.silence())
		}
		p.queues = append(p.queues, &queue{port: p, sw: sw, bell: b})
	}
	if err := sw.add(p); err != nil {
		return nil, errors.Join(err, p.silence())
	}
	if s.switches == nil {
		s.switches = map[string]*Switch{}
	}
	s.switches[name] = sw
	return p, nil
}

// add gives a port a number.
func (s *Switch) add(p *Port) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ports := slices.Clone(*s.ports.Load())
	for i := 1; i < len(ports); i++ {
		if ports[i] == nil {
			p.number, ports[i] = uint16(i), p
			s.ports.Store(&ports)
			return nil
		}
	}
	if len(ports) > MaxPorts {
		return fmt.Errorf("vswitch: %s has %d ports already", s.name, MaxPorts)
	}
	p.number = uint16(len(ports))
	ports = append(ports, p)
	s.ports.Store(&ports)
	return nil
}

// remove takes a port off and returns whether it was the last one.
func (s *Switch) remove(p *Port) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ports := slices.Clone(*s.ports.Load())
	ports[p.number] = nil
	s.ports.Store(&ports)
	s.table.forget(p.number)
	return !slices.ContainsFunc(ports, func(p *Port) bool { return p != nil })
}

// port returns the port of that number, nil if there is none any more.
func (s *Switch) port(number uint16) *Port {
	if ports := *s.ports.Load(); int(number) < len(ports) {
		return ports[number]
	}
	return nil
}

// owned is how many slots of the table a port has. The caller holds mu.
func (s *Switch) owned(number uint16) *int {
	if p := s.port(number); p != nil {
		return &p.owned
	}
	return new(int)
}

// learn changes who has a slot. Whoever finds another one doing so goes on without:
// the next frame is as good.
func (s *Switch) learn(p *Port, mac uint64, now uint32) (l learned, done bool) {
	if !s.mu.TryLock() {
		return learnedNothing, false
	}
	defer s.mu.Unlock()
	if s.port(p.number) != p {
		return learnedNothing, false
	}
	return s.table.learn(mac, p.number, now, s.owned), true
}

// Port is a port of a switch. Its methods may be called from any goroutine, those of
// a queue by its worker.
type Port struct {
	set    *Set
	sw     *Switch
	number uint16
	queues []*queue
	owned  int // slots in the table; Switch.mu

	hdrLen atomic.Int32
	// guest are the GUEST_* offloads that the driver takes.
	guest atomic.Uint64
	// active are the inboxes of the queues on which somebody receives.
	active atomic.Pointer[[]*inbox]

	// full counts frames that found no room; senders do.
	full atomic.Uint64

	mu     sync.Mutex
	closed bool
}

var (
	_ port.Port           = (*Port)(nil)
	_ port.Configurer     = (*Port)(nil)
	_ port.QueueActivator = (*Port)(nil)
	_ port.Counter        = (*Port)(nil)
)

// Kind returns "switch".
func (p *Port) Kind() string { return "switch" }

// String returns "switch:NAME".
func (p *Port) String() string { return "switch:" + p.sw.name }

// Queues implements [port.Port].
func (p *Port) Queues() int { return len(p.queues) }

// Queue implements [port.Port].
func (p *Port) Queue(i int) port.PortQueue { return p.queues[i] }

// Offloads implements [port.Port].
func (p *Port) Offloads() virtio.Features { return offloads }

// Configure implements [port.Configurer]. What waits is thrown away if an offload
// goes.
func (p *Port) Configure(hdrLen int, guest virtio.Features) error {
	if hdrLen != virtio.NetHeaderLenLegacy && hdrLen != virtio.NetHeaderLen {
		return fmt.Errorf("vswitch: configure: header of %d bytes is not supported", hdrLen)
	}
	p.hdrLen.Store(int32(hdrLen))
	if old := virtio.Features(p.guest.Swap(uint64(guest))); old&^guest != 0 {
		p.renew()
	}
	return nil
}

// Reset implements [port.Configurer].
func (p *Port) Reset() error {
	p.guest.Store(0)
	p.renew()
	return nil
}

// renew throws away what waits.
func (p *Port) renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.queues {
		if q.in.Load() != nil {
			q.in.Store(newInbox(q.bell))
		}
	}
	p.list()
}

// SetActive implements [port.QueueActivator]: a queue has an inbox while it is
// active.
func (p *Port) SetActive(i int, on bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i < 0 || i >= len(p.queues) {
		return fmt.Errorf("vswitch: %s has no queue %d", p.sw.name, i)
	}
	q := p.queues[i]
	switch {
	case p.closed || !on:
		q.in.Store(nil)
	case q.in.Load() == nil:
		q.in.Store(newInbox(q.bell))
	}
	p.list()
	return nil
}

// list makes the list of those who receive. The caller holds mu.
func (p *Port) list() {
	var list []*inbox
	for _, q := range p.queues {
		if in := q.in.Load(); in != nil {
			list = append(list, in)
		}
	}
	p.active.Store(&list)
}

// Close implements [port.Port].
func (p *Port) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	for _, q := range p.queues {
		q.in.Store(nil)
	}
	p.list()
	p.mu.Unlock()
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	if p.sw.remove(p) {
		delete(p.set.switches, p.sw.name)
	}
	return p.silence()
}

// silence closes the bells.
func (p *Port) silence() error {
	var errs []error
	for _, q := range p.queues {
		errs = append(errs, q.bell.close())
	}
	return errors.Join(errs...)
}

// Counters implements [port.Counter].
func (p *Port) Counters() map[string]uint64 {
	m := map[string]uint64{
		"receiver_full": p.full.Load(),
		"addresses":     p.sw.table.count(p.number, p.sw.clock()),
	}
	for _, q := range p.queues {
		for i := range q.counts {
			m[countNames[i]] += q.counts[i].Load()
		}
	}
	return m
}
