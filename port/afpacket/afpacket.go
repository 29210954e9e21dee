package afpacket

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/internal/linkwatch"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

// MaxQueues is the most sockets that the kernel takes into a fanout group unless it
// is told otherwise.
const MaxQueues = 256

const (
	hostBase = virtio.FeatureCSum | virtio.FeatureHostTSO4 | virtio.FeatureHostTSO6 | virtio.FeatureHostECN
	guestAll = virtio.FeatureGuestCSum | virtio.FeatureGuestTSO4 | virtio.FeatureGuestTSO6 | virtio.FeatureGuestECN
	guestUSO = virtio.FeatureGuestUSO4 | virtio.FeatureGuestUSO6
)

// drainLimit bounds how many stale frames of a queue are thrown away at once.
const drainLimit = 8192

// Options says how [Open] opens.
type Options struct {
	// Queues is how many queues there are, 1 to [MaxQueues]; 0 means 1.
	Queues int
}

// Port is an interface with a packet socket for each queue. Its methods may be called
// from any goroutine; those of one [port.PortQueue] from one at a time.
type Port struct {
	name   string
	index  uint32
	queues []*queue
	// sized: the kernel knows virtio-net headers of 12 bytes.
	sized    bool
	offloads virtio.Features
	events   *linkwatch.Watcher

	mu      sync.Mutex // guards what follows, and active of each queue
	closed  bool
	overrun uint64
	// fresh is true until Configure has been called after Open or Reset.
	fresh bool
}

var (
	_ port.Port           = (*Port)(nil)
	_ port.Configurer     = (*Port)(nil)
	_ port.QueueActivator = (*Port)(nil)
	_ port.MTUSetter      = (*Port)(nil)
	_ port.LinkState      = (*Port)(nil)
	_ port.Counter        = (*Port)(nil)
	_ port.Health         = (*Port)(nil)
	_ port.IOMethod       = (*Port)(nil)
)

// Check returns the error that Open would return for the name alone.
func Check(name string) error {
	if len(name) >= unix.IFNAMSIZ || name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n\v\f\r\x00") {
		return failed(name, "check", ErrName)
	}
	return nil
}

// Open opens packet sockets on the Ethernet interface of that name in the calling
// thread's network namespace and makes it take frames for all addresses as long as
// the port is open. The link need not be up. Needs CAP_NET_RAW. The error wraps one
// of this package's or an errno.
func Open(name string, o Options) (*Port, error) {
	if o.Queues == 0 {
		o.Queues = 1
	}
	if err := Check(name); err != nil {
		return nil, err
	}
	if o.Queues < 1 || o.Queues > MaxQueues {
		return nil, fmt.Errorf("afpacket: open %s: %d queues: want 1 to %d", name, o.Queues, MaxQueues)
	}
	p := &Port{name: name, fresh: true}
	if err := p.open(o.Queues); err != nil {
		return nil, errors.Join(err, p.release())
	}
	return p, nil
}

func (p *Port) open(queues int) error {
	for i := range queues {
		// Protocol 0: nothing is received before everything is set.
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return failed(p.name, "socket", err)
		}
		q, err := newQueue(fd)
		if err != nil {
			return failed(p.name, "memory", errors.Join(err, unix.Close(fd)))
		}
		p.queues = append(p.queues, q)
		if i == 0 {
			if p.index, err = lookUp(fd, p.name); err != nil {
				return failed(p.name, "look up", err)
			}
		}
		if op, err := p.prepare(fd); err != nil {
			return failed(p.name, op, err)
		}
		q.hdrLen.Store(virtio.NetHeaderLen)
		q.kernelHdr.Store(virtio.NetHeaderLenLegacy)
	}
	var err error
	if p.events, err = linkwatch.Subscribe(); err != nil {
		return failed(p.name, "netlink", err)
	}
	if queues > 1 {
		if err := p.group(); err != nil {
			return failed(p.name, "fanout", err)
		}
	}
	p.offloads = hostBase | guestAll
	if p.sized {
		// Linux 6.5, which knows segmented UDP in a virtio-net header (6.2).
		p.offloads |= guestUSO | virtio.FeatureHostUSO
	}
	return p.setHeader(virtio.NetHeaderLen)
}

// IO returns how frames are moved.
func (p *Port) IO() string { return "recvmmsg" }

// Kind returns "af-packet".
func (p *Port) Kind() string { return "af-packet" }

// String returns "af-packet:NAME".
func (p *Port) String() string { return "af-packet:" + p.name }

// Queues returns how many queues there are.
func (p *Port) Queues() int { return len(p.queues) }

// Queue returns queue i, 0 to Queues()-1.
func (p *Port) Queue(i int) port.PortQueue { return p.queues[i] }

// Offloads returns the feature bits that the port can serve, both ways: checksums, TCP
// segmentation with ECN, and UDP segmentation from Linux 6.5 on. What the interface
// cannot do itself the kernel does for it.
func (p *Port) Offloads() virtio.Features { return p.offloads }

// Configure starts the port for a driver, see [port.Configurer]. Frames that came
// before are thrown away.
func (p *Port) Configure(hdrLen int, guest virtio.Features) error {
	if hdrLen != virtio.NetHeaderLenLegacy && hdrLen != virtio.NetHeaderLen {
		return fmt.Errorf("afpacket: configure %s: header of %d bytes is not supported", p.name, hdrLen)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("afpacket: configure %s: %w", p.name, unix.EBADF)
	}
	for _, q := range p.queues {
		q.guest.Store(uint64(guest & p.offloads))
		if p.fresh {
			q.drain()
		}
	}
	p.fresh = false
	return p.setHeader(hdrLen)
}

// Reset takes back what Configure set.
func (p *Port) Reset() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fresh = true
	for _, q := range p.queues {
		q.guest.Store(0)
	}
	return nil
}

// setHeader sets the size of the driver's header, and of the kernel's where that can
// be set. No worker moves frames when it changes.
func (p *Port) setHeader(size int) error {
	kernel := virtio.NetHeaderLenLegacy
	if p.sized {
		kernel = size
	}
	for _, q := range p.queues {
		if int(q.kernelHdr.Load()) != kernel {
			if err := unix.SetsockoptInt(q.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR_SZ, kernel); err != nil {
				return fmt.Errorf("afpacket: %s: header of %d bytes: %w", p.name, kernel, err)
			}
			q.kernelHdr.Store(int32(kernel))
			// What was read ahead has the other one.
			q.era.Add(1)
		}
		q.hdrLen.Store(int32(size))
	}
	return nil
}

// SetActive takes queue i into use or out of it: what it would get goes to the others,
// and is thrown away if there are none. Frames that lie in it are lost; it can still
// send. A worker may use the queue meanwhile.
func (p *Port) SetActive(i int, on bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i < 0 || i >= len(p.queues) {
		return fmt.Errorf("afpacket: %s has no queue %d", p.name, i)
	}
	q := p.queues[i]
	if q.active == on {
		return nil
	}
	q.active = on
	var errs []error
	if on {
		errs = append(errs, attach(q.fd, incoming), p.spread())
	} else {
		errs = append(errs, p.spread(), attach(q.fd, nothing))
		q.drain()
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("afpacket: set queue %d of %s active=%t: %w", i, p.name, on, err)
	}
	return nil
}

// drain throws away what lies in the queue. It uses memory of its own, since a worker
// may be reading at the same time.
func (q *queue) drain() {
	var sink [virtio.NetHeaderLen]byte
	for range drainLimit {
		if _, err := unix.Read(q.fd, sink[:]); err != nil && err != unix.EINTR && err != unix.ENETDOWN && err != unix.EINVAL {
			break
		}
	}
	q.era.Add(1)
}

// Close closes the sockets; the interface stays as it was. It wakes nobody: who polls
// or uses a queue must have stopped before. Only the first call does anything.
func (p *Port) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	return p.release()
}

func (p *Port) release() error {
	var errs []error
	for _, q := range p.queues {
		errs = append(errs, q.close(), unix.Close(q.fd))
	}
	p.events.Close()
	return errors.Join(errs...)
}
