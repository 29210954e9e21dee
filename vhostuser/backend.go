package vhostuser

import (
	"errors"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// RingConfig is how a front-end has set up a ring.
type RingConfig struct {
	// Size is the number of descriptors, 1 to 32768.
	Size int
	// Desc, Driver and Device are front-end addresses of the descriptor table,
	// the available ring and the used ring; of a packed ring, of the descriptors
	// and of the driver's and the device's event suppression structures.
	Desc, Driver, Device uint64
	// Base is the next available index; of a packed ring, the next available and
	// the next used offset with their wrap counters (vhost-user, "Vring descriptor
	// indices for packed virtqueues").
	Base uint32
	// Log tells whether writes to the ring are logged when others are
	// (VHOST_VRING_F_LOG): those to Device as if it were at the guest address
	// LogAddr.
	Log     bool
	LogAddr uint64
}

// Backend is the device behind a session. All calls come from one goroutine, one
// after the other. Descriptors that are passed belong to the backend from then on,
// also when it returns an error; -1 stands for none. An error refuses the
// request; the connection goes on.
type Backend interface {
	// Features are the virtio features on offer, without VHOST_USER_F_PROTOCOL_FEATURES
	// and VHOST_F_LOG_ALL, which the protocol features say.
	Features() virtio.Features
	ProtocolFeatures() ProtocolFeatures
	// NumRings is how many rings the device has; indices are checked against it.
	NumRings() int
	// QueueNum is the answer to GET_QUEUE_NUM.
	QueueNum() uint64

	// Connected begins a session.
	Connected()
	// SetBackendChannel gives the channel to the front-end, nil takes it away.
	SetBackendChannel(ch *BackendChannel)
	// SetFeatures tells what was negotiated, a subset of the offer, without what is
	// the protocol's (VHOST_USER_F_PROTOCOL_FEATURES, VHOST_F_LOG_ALL). No ring is
	// both started and enabled.
	SetFeatures(f virtio.Features) error
	// SetMemory replaces the memory map. The backend takes a reference. When it
	// returns, nothing uses the old map any more. Started rings go on with the
	// addresses that they have, as soon as these lie in the map.
	SetMemory(m *guestmem.Map) error
	// SetLog changes where all writes to guest memory are logged, nil is nowhere. The
	// backend takes a reference. When it returns, nothing uses the old log any more,
	// and whatever is written is in the new one. It may come at any time. It is
	// called only if ProtocolFeatures has LOG_SHMFD.
	SetLog(l *guestmem.Log)

	// StartRing starts a stopped ring.
	StartRing(i int, c RingConfig, kick int) error
	// StopRing stops a ring and returns its base, as in RingConfig. Nothing is
	// written to guest memory or to the ring's descriptors after it returns.
	StopRing(i int) (base uint32, err error)
	EnableRing(i int, on bool) error
	// SetRingAddr changes the addresses of a started ring, and how it is logged.
	SetRingAddr(i int, c RingConfig) error
	// SetRingKick replaces the kick descriptor of a started ring.
	SetRingKick(i, fd int) error
	// SetRingCall and SetRingErr replace a descriptor of any ring.
	SetRingCall(i, fd int) error
	SetRingErr(i, fd int) error

	// GetConfig returns n bytes of the configuration space.
	GetConfig(off, n uint32) ([]byte, error)
	SetConfig(off, flags uint32, data []byte) error
	SetStatus(s uint8) error
	Status() uint8
	// SetMTU sets the MTU in bytes.
	SetMTU(mtu uint64) error
	SendRARP(mac [6]byte) error
	// ResetDevice stops and disables all rings and forgets the driver's state.
	ResetDevice() error

	// Disconnected ends a session. Its rings have been stopped.
	Disconnected()
}

// Options are what a session needs besides its backend.
type Options struct {
	// Log receives a line when something is wrong; nil discards it.
	Log *slog.Logger
	// Counters counts; nil does not.
	Counters *Counters
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Counters == nil {
		o.Counters = new(Counters)
	}
	return o
}

// Counters count what sessions do. The zero value is ready.
type Counters struct {
	// Connections counts front-ends that were served, Rejected those that came
	// while another one was.
	Connections, Rejected atomic.Uint64
	// Messages counts requests, Refused those that could not be carried out,
	// ProtocolErrors those that ended the connection, SurplusFDs descriptors that
	// no request asked for.
	Messages, Refused, ProtocolErrors, SurplusFDs atomic.Uint64

	mu sync.Mutex
	// byRequest counts requests by name, byReason protocol errors by what was
	// wrong; guarded by mu.
	byRequest, byReason map[string]uint64
}

func (c *Counters) request(r Request) {
	c.Messages.Add(1)
	name := requestNames[r]
	if name == "" {
		name = "unknown" // the front-end must not choose how many names there are
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byRequest == nil {
		c.byRequest = make(map[string]uint64)
	}
	c.byRequest[name]++
}

func (c *Counters) violation(err error) {
	c.ProtocolErrors.Add(1)
	reason := "other"
	if p := (*protocolError)(nil); errors.As(err, &p) {
		reason = p.reason
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byReason == nil {
		c.byReason = make(map[string]uint64)
	}
	c.byReason[reason]++
}

// ByRequest returns how many requests of each name there were. It is never nil.
func (c *Counters) ByRequest() map[string]uint64 { return c.counts(&c.byRequest) }

// ByReason returns how many protocol errors there were of each kind: version,
// size, truncated, descriptors, ancillary, reply, log. It is never nil.
func (c *Counters) ByReason() map[string]uint64 { return c.counts(&c.byReason) }

func (c *Counters) counts(of *map[string]uint64) map[string]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[string]uint64, len(*of))
	maps.Copy(out, *of)
	return out
}
