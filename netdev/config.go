package netdev

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/toeplitz"
	"github.com/vhostnet/vhostnet/virtio"
)

// MaxQueuePairs is the largest number of queue pairs: a vhost-user message
// names a ring in 8 bits, and one ring is the control queue.
const MaxQueuePairs = 127

// MaxQueueSize is the largest virtqueue size (virtio 1.4, "Virtqueues").
const MaxQueueSize = 32768

// Config describes a device. It does not change while the device lives.
type Config struct {
	// Name is the device's name in the status API and in the log.
	Name string
	// QueuePairs is the number of receive/transmit queue pairs, 1 (default) to
	// MaxQueuePairs.
	QueuePairs int
	// QueueSize is the largest size of a virtqueue that the device accepts, a
	// power of two up to MaxQueueSize; 0 means MaxQueueSize. The driver or the
	// front-end chooses the actual size.
	QueueSize int
	// MAC is offered to the driver; the zero address leaves VIRTIO_NET_F_MAC out.
	MAC [6]byte
	// MTU is offered to the driver in bytes, 68 to 65535; 0 leaves
	// VIRTIO_NET_F_MTU out.
	MTU int
	// Speed is the link's speed in Mbit/s, up to 2^31-1, that the driver is told of
	// together with full duplex; 0 leaves VIRTIO_NET_F_SPEED_DUPLEX out.
	Speed int
	// RXModeration and TXModeration choose the host's notification limits.
	RXModeration, TXModeration coalesce.EngineSpec
	// RXLimits and TXLimits are short for the fixed engine, where no other one is
	// chosen.
	RXLimits, TXLimits coalesce.Limits
	// Strict makes a driver's "every packet" setting, the default of Linux,
	// overrule the host's limits.
	Strict bool
	// RSSTable is the longest indirection table in entries, a power of two from
	// 128 (default) to 32768, and RSSKey the longest key in bytes, 40 (default) to
	// 255, with VIRTIO_NET_F_RSS or VIRTIO_NET_F_HASH_REPORT. Older Linux drivers
	// take no more than the defaults.
	RSSTable, RSSKey int
	// Without lists feature bits that are not offered.
	Without virtio.Features
	// With adds feature bits to the offer; only bits that the device
	// implements, and whose dependencies are on offer, are accepted.
	With virtio.Features
	// Pool are the threads that serve the queue pairs; nil is one for each.
	Pool *Pool
	// Trace, if set, is called for every observation that an engine was told of,
	// with the engine's last decision and its answer. It is called by the workers
	// between two packets: it must not block, keep o or allocate.
	Trace func(queue int, o *coalesce.Observation, d coalesce.Decision, a coalesce.Advice)
	// Log receives the device's few messages; nil discards them.
	Log *slog.Logger
}

// ErrConfig is wrapped by errors of New that the configuration causes.
var ErrConfig = errors.New("netdev: configuration")

func (c *Config) check(p port.Port) error {
	if c.QueuePairs == 0 {
		c.QueuePairs = 1
	}
	if c.QueueSize == 0 {
		c.QueueSize = MaxQueueSize
	}
	if c.RSSTable == 0 {
		c.RSSTable = 128
	}
	if c.RSSKey == 0 {
		c.RSSKey = toeplitz.MinKey
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.RXModeration = orFixed(c.RXModeration, c.RXLimits, coalesce.RX)
	c.TXModeration = orFixed(c.TXModeration, c.TXLimits, coalesce.TX)
	switch {
	case c.QueuePairs < 1 || c.QueuePairs > MaxQueuePairs:
		return fmt.Errorf("%w: %d queue pairs: want 1 to %d", ErrConfig, c.QueuePairs, MaxQueuePairs)
	case c.QueueSize < 1 || c.QueueSize > MaxQueueSize || c.QueueSize&(c.QueueSize-1) != 0:
		return fmt.Errorf("%w: queue size %d: want a power of two up to %d", ErrConfig, c.QueueSize, MaxQueueSize)
	case c.MTU != 0 && (c.MTU < 68 || c.MTU > 65535):
		return fmt.Errorf("%w: MTU %d: want 68 to 65535 bytes", ErrConfig, c.MTU)
	case c.Speed < 0 || c.Speed > 1<<31-1:
		return fmt.Errorf("%w: speed of %d Mbit/s: want 1 to %d", ErrConfig, c.Speed, 1<<31-1)
	case c.RSSTable < 128 || c.RSSTable > 32768 || c.RSSTable&(c.RSSTable-1) != 0:
		return fmt.Errorf("%w: RSS table of %d entries: want a power of two from 128 to 32768", ErrConfig, c.RSSTable)
	case c.RSSKey < toeplitz.MinKey || c.RSSKey > 255:
		return fmt.Errorf("%w: RSS key of %d bytes: want %d to 255", ErrConfig, c.RSSKey, toeplitz.MinKey)
	case c.MAC[0]&1 != 0:
		return fmt.Errorf("%w: MAC address %x is a group address", ErrConfig, c.MAC)
	case p.Queues() < c.QueuePairs:
		return fmt.Errorf("%w: port %s has %d queues, the device %d queue pairs", ErrConfig, p, p.Queues(), c.QueuePairs)
	}
	return nil
}

// always is what the device implements whatever its port can do.
const always = virtio.FeatureVersion1 | virtio.FeatureRingPacked |
	virtio.FeatureIndirectDesc | virtio.FeatureEventIdx | virtio.FeatureInOrder |
	virtio.FeatureMrgRxBuf | virtio.FeatureStatus | virtio.FeatureGuestHdrLen |
	virtio.FeatureCtrlVQ | virtio.FeatureCtrlRX | virtio.FeatureCtrlRXExtra | virtio.FeatureCtrlVLAN |
	virtio.FeatureCtrlMACAddr | virtio.FeatureGuestAnnounce |
	virtio.FeatureNotfCoal | virtio.FeatureVQNotfCoal | virtio.FeatureDeviceStats

// onRequest is what the device implements and offers only if Config.With has it.
// STANDBY is for the driver alone: it pairs the device with one of the same address.
const onRequest = virtio.FeatureRSS | virtio.FeatureHashReport | virtio.FeatureStandby

// guestOffloads are the offloads that the driver can switch at run time.
const guestOffloads = virtio.FeatureGuestCSum | virtio.FeatureGuestTSO4 | virtio.FeatureGuestTSO6 |
	virtio.FeatureGuestECN | virtio.FeatureGuestUFO | virtio.FeatureGuestUSO4 | virtio.FeatureGuestUSO6

// offer computes the feature bits of a device.
func (c *Config) offer(p port.Port) (virtio.Features, error) {
	f := always | p.Offloads()
	if f&guestOffloads != 0 {
		f |= virtio.FeatureCtrlGuestOffloads
	}
	if c.MAC != [6]byte{} {
		f |= virtio.FeatureMAC
	}
	if c.MTU != 0 {
		f |= virtio.FeatureMTU
	}
	if c.Speed != 0 {
		f |= virtio.FeatureSpeedDuplex
	}
	if c.QueuePairs > 1 {
		f |= virtio.FeatureMQ
	}
	if extra := c.With &^ (f | onRequest); extra != 0 {
		return 0, fmt.Errorf("%w: this device with port %s cannot offer %s", ErrConfig, p, extra)
	}
	f = (f | c.With) &^ c.Without
	for _, d := range f.Missing() {
		if c.With.Has(d.Feature) {
			return 0, fmt.Errorf("%w: %s, which is not on offer", ErrConfig, d)
		}
	}
	return f.Closure(), nil
}

// orFixed is s, or the fixed engine with l if s is no engine and l not zero.
func orFixed(s coalesce.EngineSpec, l coalesce.Limits, d coalesce.Direction) coalesce.EngineSpec {
	if s.Kind == coalesce.EngineOff && l != (coalesce.Limits{}) {
		s = coalesce.EngineSpec{Kind: coalesce.EngineFixed, Limits: l}
	}
	s.Direction = d
	return s
}
