package driver

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/vhostnet/vhostnet/virtio"
)

// Defaults of Config.
const (
	DefaultQueueSize  = 256
	DefaultBufferSize = 2048
	DefaultTimeout    = 5 * time.Second
)

const (
	// maxQueueSize is the specification's limit for a virtqueue.
	maxQueueSize = 32768
	// minQueueSize keeps the used_event field of a split virtqueue on a word of its
	// own.
	minQueueSize = 2
	// maxBufferSize holds the largest GSO frame with any header.
	maxBufferSize = 1 << 17
	maxPairs      = 127
)

// DefaultFeatures is what a driver accepts of a device's offer unless it is
// configured otherwise: everything it understands but the offloads.
const DefaultFeatures = virtio.FeatureVersion1 | virtio.FeatureEventIdx | virtio.FeatureIndirectDesc |
	virtio.FeatureMrgRxBuf | virtio.FeatureMAC | virtio.FeatureMTU | virtio.FeatureStatus |
	virtio.FeatureCtrlVQ | virtio.FeatureCtrlRX | virtio.FeatureCtrlRXExtra | virtio.FeatureCtrlVLAN |
	virtio.FeatureCtrlMACAddr | virtio.FeatureGuestAnnounce | virtio.FeatureMQ |
	virtio.FeatureNotfCoal | virtio.FeatureVQNotfCoal | virtio.FeatureDeviceStats |
	virtio.FeatureSpeedDuplex | virtio.FeatureGuestHdrLen

// Offloads are the checksum and segmentation features of both directions. A
// user that adds them to its features has to be ready for partial checksums and
// for received frames of 64 KiB.
const Offloads = virtio.FeatureCSum | virtio.FeatureHostTSO4 | virtio.FeatureHostTSO6 | virtio.FeatureHostECN |
	virtio.FeatureHostUFO | virtio.FeatureHostUSO |
	virtio.FeatureGuestCSum | virtio.FeatureGuestTSO4 | virtio.FeatureGuestTSO6 | virtio.FeatureGuestECN |
	virtio.FeatureGuestUFO | virtio.FeatureGuestUSO4 | virtio.FeatureGuestUSO6 | virtio.FeatureCtrlGuestOffloads

// ErrConfig is wrapped by errors of New that the configuration causes.
var ErrConfig = errors.New("driver: configuration")

// Config describes a driver. The zero value is one queue pair of 256 entries.
type Config struct {
	// QueuePairs is the number of queue pairs to set up, 1 (default) to 127. More
	// than one needs VIRTIO_NET_F_MQ and that many pairs in the device.
	QueuePairs int
	// QueueSize is the size of each data virtqueue, a power of two from 2 to
	// 32768, or with Packed any from 1; 0 means DefaultQueueSize.
	QueueSize int
	// Packed uses packed virtqueues. The device must have VIRTIO_F_RING_PACKED.
	Packed bool
	// Features is what the driver accepts if it is offered; 0 means
	// DefaultFeatures.
	Features virtio.Features
	// Without is taken out of Features.
	Without virtio.Features
	// RXBufferSize is the size of a receive buffer in bytes, header included;
	// 0 means DefaultBufferSize.
	RXBufferSize int
	// TXBufferSize is the size of a transmit buffer in bytes, header included;
	// 0 means DefaultBufferSize.
	TXBufferSize int
	// TXSegments is over how many descriptors a transmitted frame is spread: 1
	// (default) puts header and frame into one, 2 the header into its own, more
	// split the frame as well.
	TXSegments int
	// Indirect puts a frame's descriptors into an indirect table if
	// VIRTIO_F_INDIRECT_DESC was negotiated.
	Indirect bool
	// Polling makes Wait spin (yielding) and never ask for notifications.
	Polling bool
	// MemRegions is over how many entries of the memory table the guest memory
	// is spread, 1 (default) to 8. They adjoin, so buffers cross the borders.
	MemRegions int
	// DirtyLog negotiates that the device can log what it writes, for StartLog.
	DirtyLog bool
	// ControlTimeout bounds the wait for the answer to a control command; 0
	// means DefaultTimeout.
	ControlTimeout time.Duration
	// Log receives a few messages about life and death; nil discards them.
	Log *slog.Logger
}

func (c *Config) setDefaults() {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.QueuePairs, 1)
	def(&c.QueueSize, DefaultQueueSize)
	def(&c.RXBufferSize, DefaultBufferSize)
	def(&c.TXBufferSize, DefaultBufferSize)
	def(&c.TXSegments, 1)
	def(&c.MemRegions, 1)
	if c.Features == 0 {
		c.Features = DefaultFeatures
	}
	if c.Packed {
		c.Features |= virtio.FeatureRingPacked
	}
	c.Features &^= c.Without
	c.Packed = c.Features.Has(virtio.FeatureRingPacked)
	if c.ControlTimeout == 0 {
		c.ControlTimeout = DefaultTimeout
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

func (c *Config) check() error {
	c.setDefaults()
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
	}
	switch {
	case c.QueuePairs < 1 || c.QueuePairs > maxPairs:
		return bad("%d queue pairs: want 1 to %d", c.QueuePairs, maxPairs)
	case c.Packed && (c.QueueSize < 1 || c.QueueSize > maxQueueSize):
		return bad("queue size %d: want 1 to %d", c.QueueSize, maxQueueSize)
	case !c.Packed && (c.QueueSize < minQueueSize || c.QueueSize > maxQueueSize || c.QueueSize&(c.QueueSize-1) != 0):
		return bad("queue size %d: want a power of two from %d to %d", c.QueueSize, minQueueSize, maxQueueSize)
	case c.RXBufferSize < 1 || c.RXBufferSize > maxBufferSize:
		return bad("receive buffer of %d bytes: want 1 to %d", c.RXBufferSize, maxBufferSize)
	case c.TXBufferSize < virtio.NetHeaderMax+1 || c.TXBufferSize > maxBufferSize:
		return bad("transmit buffer of %d bytes: want %d to %d", c.TXBufferSize, virtio.NetHeaderMax+1, maxBufferSize)
	case c.TXSegments < 1 || c.TXSegments > c.QueueSize:
		return bad("%d descriptors per frame: want 1 to the queue size %d", c.TXSegments, c.QueueSize)
	case c.MemRegions < 1 || c.MemRegions > maxRegions:
		return bad("%d memory regions: want 1 to %d", c.MemRegions, maxRegions)
	}
	return nil
}
