package tap

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/internal/linkwatch"
	"github.com/vhostnet/vhostnet/internal/uring"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

// MaxQueues is the most queues that the kernel attaches to one TAP.
const MaxQueues = 256

// Options says how [Open] attaches.
type Options struct {
	// Queues is how many queues are attached, 1 to [MaxQueues]; 0 means 1. More
	// than one needs a multi_queue TAP.
	Queues int
	// CreateIfMissing makes the interface if it is not there, and sets it up.
	// It lives until the port is closed. Needs CAP_NET_ADMIN. The kernel makes
	// the first free name of a pattern such as "vn%d".
	CreateIfMissing bool
	// IO is how frames are moved.
	IO IO
	// Owner and Group of the interface that is made may attach to it, beside
	// processes with CAP_NET_ADMIN; while both are nil, all may that can open
	// /dev/net/tun.
	Owner, Group *uint32
}

// IO is a way to move frames between a TAP and this program.
type IO int

const (
	// IOAuto is batches where the kernel has them, and single frames elsewhere.
	IOAuto IO = iota
	// IOSingle is one system call a frame, readv and writev.
	IOSingle
	// IOBatch is one system call for many frames, through an io_uring. It needs
	// Linux 6.4 or later, and that nobody has forbidden io_uring.
	IOBatch
)

// Port is an attached TAP. It owns the descriptors of its queues and a netlink
// socket in the TAP's network namespace. Its methods may be called from any
// goroutine; those of one [port.PortQueue] from one at a time.
type Port struct {
	name      string
	queues    []*queue
	multi     bool
	batches   bool
	offloads  virtio.Features
	nl        *netlink.Handle
	events    *linkwatch.Watcher // changes of links in that namespace
	namespace uint64             // inode of the namespace of nl, 0 if unknown

	mu     sync.Mutex // guards what follows, and active of each queue
	closed bool
	// guest is what the TAP may do towards the driver, hdrLen the header's size.
	guest  virtio.Features
	hdrLen int
	// order are the attached queues by their index in the kernel, steering what
	// puts frames on them, nil if the kernel does it by itself.
	order    []int
	steering *steering
	// fresh is true until Configure has been called after Open or Reset.
	fresh bool
}

var (
	_ port.Port           = (*Port)(nil)
	_ port.Configurer     = (*Port)(nil)
	_ port.QueueActivator = (*Port)(nil)
	_ port.MTUSetter      = (*Port)(nil)
	_ port.LinkState      = (*Port)(nil)
	_ port.IOMethod       = (*Port)(nil)
	_ port.Steerer        = (*Port)(nil)
)

// Open attaches to the TAP of that name in the calling thread's network
// namespace. All queues are attached and all offloads are off. An interface that
// exists is left as it is otherwise: while its link is down, frames are dropped.
// The error is an [*Error].
func Open(name string, o Options) (*Port, error) {
	if o.Queues == 0 {
		o.Queues = 1
	}
	if err := checkName(name); err != nil {
		return nil, failed("open", name, err)
	}
	if o.Queues < 1 || o.Queues > MaxQueues {
		return nil, failed("open", name, fmt.Errorf("%d queues: want 1 to %d", o.Queues, MaxQueues))
	}
	// The namespace is the thread's: it must be one and the same for all steps.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, failed("open netlink socket for", name, err)
	}
	events, err := linkwatch.Subscribe()
	if err != nil {
		handle.Close()
		return nil, failed("open netlink socket for", name, err)
	}
	p := &Port{name: name, nl: handle, events: events, fresh: true}
	if err := p.open(o); err != nil {
		p.release()
		return nil, err
	}
	return p, nil
}

func (p *Port) open(o Options) error {
	link, err := findTAP(p.nl, p.name)
	create := errors.Is(err, ErrMissing) && o.CreateIfMissing
	switch {
	case create:
		p.multi = o.Queues > 1
	case err != nil:
		return failed("open", p.name, err)
	default:
		p.multi = link.Flags&netlink.TUNTAP_MULTI_QUEUE != 0
		if o.Queues > 1 && !p.multi {
			return failed("open", p.name, ErrQueues)
		}
		if link.Queues+link.DisabledQueues > 0 {
			return failed("open", p.name, ErrBusy)
		}
	}
	for range o.Queues {
		fd, name, err := attach(p.name, p.multi)
		if err != nil {
			return err
		}
		p.name = name // the kernel has filled in a pattern such as "vn%d"
		p.order = append(p.order, len(p.queues))
		p.queues = append(p.queues, newQueue(kernel{}, nil, fd))
	}
	if err := p.startBatches(o.IO); err != nil {
		return failed("open", p.name, err)
	}
	fd := p.queues[0].fd
	p.namespace = namespaceOf(fd)
	if create {
		if err := setOwner(fd, o.Owner, o.Group); err != nil {
			return failed("set owner of", p.name, err)
		}
		if err := setUp(p.nl, p.name); err != nil {
			return failed("set up", p.name, err)
		}
	}
	if p.offloads, err = probe(fd); err != nil {
		return failed("probe offloads of", p.name, err)
	}
	if err := p.setHeader(fd, virtio.NetHeaderLen); err != nil {
		return failed("set header size of", p.name, err)
	}
	return nil
}

// startBatches gives each queue an io_uring, or none to any of them.
func (p *Port) startBatches(how IO) error {
	if how == IOSingle {
		return nil
	}
	err := p.tryBatches()
	if err == nil {
		p.batches = true
		return nil
	}
	for _, q := range p.queues {
		q.single()
	}
	if how == IOBatch {
		return err
	}
	return nil
}

func (p *Port) tryBatches() error {
	for _, q := range p.queues {
		// An io_uring would wait for a frame where the driver of the descriptor
		// cannot be asked not to.
		var b [virtio.NetHeaderLen]byte
		const nowait = 8 // RWF_NOWAIT
		_, err := unix.Preadv2(q.fd, [][]byte{b[:]}, -1, nowait)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
			return fmt.Errorf("read without waiting: %w", err)
		}
		r, err := uring.New(maxBatch)
		if err != nil {
			return err
		}
		q.batch = r
	}
	return nil
}

// IO returns how frames are moved: "io_uring" or "readv".
func (p *Port) IO() string {
	if p.batches {
		return "io_uring"
	}
	return "readv"
}

// Kind returns "tap".
func (p *Port) Kind() string { return "tap" }

// String returns "tap:NAME".
func (p *Port) String() string { return "tap:" + p.name }

// Name returns the interface's name at the time of [Open].
func (p *Port) Name() string { return p.name }

// Queues returns how many queues were attached.
func (p *Port) Queues() int { return len(p.queues) }

// Queue returns queue i, 0 to Queues()-1.
func (p *Port) Queue(i int) port.PortQueue { return p.queues[i] }

// Offloads returns the feature bits that the TAP can serve: those of the CSUM,
// GUEST_* and HOST_* families that this kernel supports. The UFO bits are among
// them though the kernel has only emulated UFO since Linux 4.14.
func (p *Port) Offloads() virtio.Features { return p.offloads }

// Close switches the offloads off and detaches all queues; an interface that
// [Open] made is gone then. It wakes nobody: who polls or uses a queue must have
// stopped before. Only the first call does anything.
func (p *Port) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	// A persistent TAP must not keep what this guest accepted.
	err := errors.Join(p.unsteer(), p.reset())
	if errors.Is(err, unix.EBADFD) {
		err = nil // the interface was deleted; nothing is left to reset
	}
	return errors.Join(err, p.release())
}

func (p *Port) release() error {
	var err error
	for _, q := range p.queues {
		err = errors.Join(err, q.close(), unix.Close(q.fd))
	}
	p.events.Close()
	p.nl.Close()
	return err
}

// SetActive attaches queue i to the TAP or detaches it (TUNSETQUEUE). The kernel
// spreads what the host sends over the attached queues, and drops it if there
// are none. Frames that lay in a queue when it was detached are lost; it can
// still send. A TAP without multi_queue cannot detach its only queue: the call
// then does nothing. A worker may use the queue meanwhile.
func (p *Port) SetActive(i int, on bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i < 0 || i >= len(p.queues) {
		return fmt.Errorf("tap: %s has no queue %d", p.name, i)
	}
	q := p.queues[i]
	if !p.multi || q.active == on {
		return nil
	}
	flag := uint16(unix.IFF_DETACH_QUEUE)
	if on {
		flag = unix.IFF_ATTACH_QUEUE
	}
	if err := setQueue(q.fd, flag); err != nil {
		return fmt.Errorf("tap: set queue %d of %s active=%t: %w", i, p.name, on, err)
	}
	q.active = on
	q.era.Add(1)
	p.order = move(p.order, i, on)
	if p.steering != nil {
		return p.steering.refresh(p.order)
	}
	return nil
}
