package tap

import (
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

const (
	// maxIov is the most segments that one readv or writev takes (IOV_MAX).
	maxIov = 1024
	// frameRoom is the largest frame that a TAP can hand over, header included:
	// the 65535 bytes of a segmented IP packet (tun does not raise the kernel's
	// default gso_max_size), its Ethernet header, and two VLAN tags.
	frameRoom = virtio.NetHeaderMax + 65535 + 14 + 2*4
)

// layer is the system calls of the datapath; tests put their own below a queue.
type layer interface {
	read(fd int, b []byte) (int, syscall.Errno)
	write(fd int, b []byte) (int, syscall.Errno)
	readv(fd int, iov []unix.Iovec) (int, syscall.Errno)
	writev(fd int, iov []unix.Iovec) (int, syscall.Errno)
}

// queue is one queue of a TAP. The port owns its descriptor; one worker at a
// time calls Recv and Send and owns the scratch memory.
type queue struct {
	sys layer
	fd  int
	// active is false while the queue is detached. It is the port's.
	active bool
	// plain is true while the driver has not accepted GUEST_CSUM: it gets no
	// header flag then. Written by Configure.
	plain atomic.Bool
	// era changes when what was read ahead has become worthless. Written by the
	// port.
	era atomic.Uint32

	// worker's
	batch   batch // nil: one system call a frame
	ahead   ahead
	sizes   [maxBatch]int
	iov     []unix.Iovec
	scratch []byte
}

var _ port.BatchQueue = (*queue)(nil)

// newQueue makes a queue that moves frames one by one, or in batches if there is b.
func newQueue(sys layer, b batch, fd int) *queue {
	q := &queue{
		sys:     sys,
		batch:   b,
		fd:      fd,
		active:  true,
		iov:     make([]unix.Iovec, 0, maxIov),
		scratch: make([]byte, frameRoom),
	}
	q.plain.Store(true)
	return q
}

// FD returns the descriptor to poll. When the interface is gone, polling it
// reports an error condition at once.
func (q *queue) FD() int { return q.fd }

// Recv reads one frame, header first, into bufs and returns its length, header
// included. It returns port.ErrWouldBlock if there is none, port.ErrTruncated
// with the frame's length if it did not fit (the frame is lost), an error that
// wraps port.ErrDropped if it was lost for another reason, guestmem.ErrFault if
// the memory of bufs is gone, and [ErrGone] if the interface is. Of a fault
// behind the header the kernel does not tell: the frame's bytes are missing then.
// Frames that were read ahead are copied; where that hits memory that is gone, it
// faults.
func (q *queue) Recv(bufs [][]byte) (int, error) {
	if q.batch != nil {
		if n, err, ok := q.recvAhead(bufs); ok {
			return n, err
		}
	}
	room, iov := 0, q.iov
	var last []byte
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		if len(iov) == maxIov-1 {
			return q.recvLinear(bufs)
		}
		var v unix.Iovec
		v.Base = &b[0]
		v.SetLen(len(b))
		iov = append(iov, v)
		room += len(b)
		last = b
	}
	direct := len(iov) == 1 && room >= frameRoom
	if !direct && room < frameRoom {
		// A TAP cuts what does not fit and does not tell. What ends up behind
		// the caller's room shows that there was more.
		var v unix.Iovec
		v.Base = &q.scratch[0]
		v.SetLen(len(q.scratch))
		iov = append(iov, v)
	}
	var n int
	var errno syscall.Errno
	for {
		if direct {
			n, errno = q.sys.read(q.fd, last)
		} else {
			n, errno = q.sys.readv(q.fd, iov)
		}
		if errno != unix.EINTR {
			break
		}
	}
	clear(iov) // the guest's memory may be unmapped before the next call
	return q.received(bufs, room, n, errno)
}

// received judges the result of a read into bufs, which have that much room.
func (q *queue) received(bufs [][]byte, room, n int, errno syscall.Errno) (int, error) {
	if errno != 0 {
		return 0, recvError(errno)
	}
	q.ahead.readSingly(n)
	if n > room || (n == room && room >= frameRoom) {
		return n, port.ErrTruncated
	}
	if q.plain.Load() {
		// The kernel marks frames that it has checked itself with DATA_VALID,
		// whatever TUNSETOFFLOAD says.
		for _, b := range bufs {
			if len(b) > 0 {
				b[0] = 0
				break
			}
		}
	}
	return n, nil
}

// recvLinear is Recv for more segments than the kernel takes.
func (q *queue) recvLinear(bufs [][]byte) (int, error) {
	var n int
	var errno syscall.Errno
	for {
		if n, errno = q.sys.read(q.fd, q.scratch); errno != unix.EINTR {
			break
		}
	}
	room := 0
	for _, b := range bufs {
		room += len(b)
	}
	if errno == 0 && n <= room {
		rest := q.scratch[:n]
		for _, b := range bufs {
			rest = rest[copy(b, rest):]
			if len(rest) == 0 {
				break
			}
		}
	}
	return q.received(bufs, room, n, errno)
}

func recvError(errno syscall.Errno) error {
	switch errno {
	case unix.EAGAIN:
		return port.ErrWouldBlock
	case unix.EFAULT:
		return guestmem.ErrFault
	case unix.EBADFD:
		return ErrGone
	}
	return dropped(errno)
}

// Send writes one frame, header first. It returns port.ErrWouldBlock if the
// frame was not taken and can be sent again when the queue is writable, an
// error that wraps port.ErrDropped if the kernel refused it (a link that is
// down, a header that makes no sense, no memory), and guestmem.ErrFault if the
// memory of bufs is gone. In no case but the first may it be sent again.
func (q *queue) Send(bufs [][]byte) error {
	size, iov, fits := 0, q.iov, true
	var last []byte
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		size += len(b)
		if size > frameRoom {
			return dropped(unix.EMSGSIZE)
		}
		last = b
		if len(iov) == maxIov {
			fits = false
			continue
		}
		var v unix.Iovec
		v.Base = &b[0]
		v.SetLen(len(b))
		iov = append(iov, v)
	}
	if !fits {
		last = q.scratch[:0]
		for _, b := range bufs {
			last = append(last, b...)
		}
	}
	var n int
	var errno syscall.Errno
	for {
		switch {
		case size == 0:
			return dropped(unix.EINVAL)
		case fits && len(iov) > 1:
			n, errno = q.sys.writev(q.fd, iov)
		default:
			n, errno = q.sys.write(q.fd, last)
		}
		if errno != unix.EINTR {
			break
		}
	}
	clear(iov) // the guest's memory may be unmapped before the next call
	return sendError(errno, n, size)
}

// sendError judges the result of a write of size bytes.
func sendError(errno syscall.Errno, n, size int) error {
	switch {
	case errno == unix.EAGAIN:
		return port.ErrWouldBlock
	case errno == unix.EFAULT:
		return guestmem.ErrFault
	case errno != 0:
		return dropped(errno)
	case n != size:
		return errShort
	}
	return nil
}
