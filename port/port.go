package port

import (
	"errors"

	"github.com/vhostnet/vhostnet/virtio"
)

var (
	// ErrWouldBlock: nothing was moved, and the same call can succeed later.
	ErrWouldBlock = errors.New("port: would block")
	// ErrDropped: the frame is lost; the next one may fare better. It is wrapped
	// by errors that say why.
	ErrDropped = errors.New("port: frame dropped")
	// ErrTruncated: the frame did not fit the room that was offered, and is lost.
	ErrTruncated = errors.New("port: frame does not fit")
)

// Port is the host side of a device. Its queues are used by one worker each;
// the other methods by the device's control goroutines, one at a time.
type Port interface {
	// Kind is the part of the port's notation before the colon.
	Kind() string
	// String is the port's notation, "tap:vn0" for example.
	String() string
	// Queues is how many queues the port has, at least 1.
	Queues() int
	// Queue returns queue i, 0 to Queues()-1, always the same one.
	Queue(i int) PortQueue
	// Offloads are the checksum and segmentation features, of both directions,
	// that the port can serve.
	Offloads() virtio.Features
	// Close releases the port. No worker may be using its queues.
	Close() error
}

// PortQueue is one queue of a port. One worker uses it; no method allocates.
type PortQueue interface {
	// FD is the descriptor that becomes readable when Recv has something, -1 if
	// there is none: then that changes only by a Send on the same queue, or
	// never.
	FD() int
	// Recv takes one frame, virtio-net header first, into bufs and returns its
	// length. Errors: ErrWouldBlock, ErrTruncated with the frame's length,
	// errors that wrap ErrDropped, guestmem.ErrFault for memory that is gone.
	Recv(bufs [][]byte) (int, error)
	// Send gives one frame, virtio-net header first. Errors: ErrWouldBlock (send
	// it again when the descriptor is writable, or without one after a Recv),
	// errors that wrap ErrDropped, guestmem.ErrFault for memory that is gone.
	Send(bufs [][]byte) error
}

// BatchQueue is a queue with a descriptor that can send many frames in a call, and
// that reads ahead.
type BatchQueue interface {
	PortQueue
	// SendBatch is Send for each of frames, in order, with an error for each, as
	// many as errs has room for at most. Behind the first ErrWouldBlock there are
	// only others.
	SendBatch(frames [][][]byte, errs []error)
	// Readable says that the descriptor was reported to be readable. It is called
	// each time, before the next Recv: a queue that has read ahead knows without
	// another look that there is nothing more, as long as that is not reported.
	Readable()
}

// BurstQueue is a queue that can move many frames in a call. It is for plain
// frames, those that need no virtio-net header: its flags, segmentation type and
// everything that depends on them would be zero.
type BurstQueue interface {
	PortQueue
	// SendBurst gives frames without a header, each at least an Ethernet header
	// long, and returns how many it took, in order. Those left may be sent again,
	// or with Send, which tells what is the matter.
	SendBurst(frames [][]byte) int
	// ReadsFrames tells whether SendBurst looks at more than the lengths: then the
	// frames are fetched from the driver's processor beforehand.
	ReadsFrames() bool
	// RecvBurst takes frames, one into each of bufs, behind room for a header of
	// hdr bytes, which it leaves as it is. lens, at least as long as bufs, gets
	// their lengths, header included. It returns how many frames it took; more
	// tells whether there can be others, of which the next may not be plain, or
	// not fit its buffer, so that Recv is to be used.
	RecvBurst(bufs [][]byte, hdr int, lens []uint32) (n int, more bool)
}

// MemoryQueue is a queue with a descriptor whose frames lie in memory: what it has
// is seen without a system call, and its descriptor becomes readable only for a
// worker that has said that it sleeps.
type MemoryQueue interface {
	PortQueue
	// Pending tells whether Recv would find a frame.
	Pending() bool
	// Sleep says that the worker is about to wait for the descriptor. It returns
	// false if there is something to receive after all.
	Sleep() bool
	// Awake says that it waits no longer.
	Awake()
}

// Counter is a port that counts what happens to frames behind its queues.
type Counter interface {
	// Counters returns a copy, by name. It may be called from any goroutine.
	Counters() map[string]uint64
}

// Configurer is a port that follows what the driver has accepted.
type Configurer interface {
	// Configure sets the size of the virtio-net header, 10, 12 or 20 bytes, and the
	// GUEST_* offloads that the driver takes. It is called when the first
	// virtqueue starts and when the driver changes its offloads.
	Configure(hdrLen int, guest virtio.Features) error
	// Reset takes all offloads back. It is called when the last virtqueue stops
	// and when a session ends.
	Reset() error
}

// QueueActivator is a port whose queues can be taken out of use, so that the
// host steers no frames to those on which nobody receives.
type QueueActivator interface {
	SetActive(i int, on bool) error
}

// MTUSetter is a port with an MTU.
type MTUSetter interface {
	// SetMTU sets the MTU in bytes, 68 to 65535.
	SetMTU(mtu int) error
}

// Steering says to which queue a received frame belongs: to the one that Table
// has at the frame's Toeplitz hash modulo its length, which is a power of two, or to
// Unclassified if the frame has nothing of Types to hash.
type Steering struct {
	Types        uint32 // as in virtio: VIRTIO_NET_HASH_TYPE
	Key          []byte
	Table        []uint16
	Unclassified uint16
}

// Steerer is a port that can put received frames onto queues by their hash.
type Steerer interface {
	// Steer begins to steer like that, or goes back to what it does by itself with
	// nil. It may put some frames elsewhere; the device puts them right. The
	// slices may be kept.
	Steer(s *Steering) error
}

// IOMethod is a port that can move frames in more than one way.
type IOMethod interface {
	// IO is the name of the one in use.
	IO() string
}

// LinkState is a port that knows whether its link is up, and tells of changes.
type LinkState interface {
	LinkUp() bool
	// WatchLink calls changed, from a goroutine of the port's, whenever LinkUp may
	// return something else than before, until the port is closed; a call that has
	// begun by then may still go on. It is called once.
	WatchLink(changed func()) error
}

// Health is a port that can be out of order for a while.
type Health interface {
	// Err is why no frames can be moved at present, nil if they can. It may be called
	// from any goroutine.
	Err() error
}
