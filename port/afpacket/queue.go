package afpacket

import (
	"encoding/binary"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/port/offload"
	"github.com/vhostnet/vhostnet/virtio"
)

const (
	// maxIov is the most segments that one message has (UIO_MAXIOV).
	maxIov = 1024
	// maxBatch is how many frames one system call moves, maxBatchBytes after how many
	// bytes it takes no further ones: nobody else gets the goroutine's processor
	// before it returns.
	maxBatch      = 64
	maxBatchBytes = 128 << 10
	// maxAhead is how many frames are read at once.
	maxAhead = 32
	vlanTag  = 4
	// maxFrame is the longest frame without the header, its outer VLAN tag included:
	// 65535 bytes behind an Ethernet header and two tags.
	maxFrame = 65535 + 14 + 2*vlanTag
	// stride is how far frames that are read are from each other, such that their
	// beginnings do not compete for the same lines of a cache.
	stride = 65536 + 2176
)

// queue is a packet socket. The port owns its descriptor; one worker at a time calls
// Recv and Send and owns what is below "worker's".
type queue struct {
	fd int
	// hdrLen is the size of the driver's virtio-net header, kernelHdr of the kernel's,
	// which is not larger; guest are the driver's GUEST_* features. Written by the
	// port.
	hdrLen, kernelHdr atomic.Int32
	guest             atomic.Uint64
	// era changes when what was read has become worthless. Written by the port.
	era atomic.Uint32
	// active is the port's: the queue is in use.
	active bool

	c [counters]counter

	// worker's
	in      inbox
	out     [maxBatch]message
	sizes   [maxBatch]int
	iov     []unix.Iovec
	scratch []byte
	cut     offload.Segmenter
	segment []byte // nil until it is needed
	cutting bool
	one     [1][][]byte
}

// inbox are frames that were read and not yet asked for.
type inbox struct {
	mem         []byte // maxAhead times stride
	messages    [maxAhead]message
	iov         [maxAhead][2]unix.Iovec
	headers     [maxAhead][virtio.NetHeaderLen]byte
	aux         [maxAhead]auxdata
	next, count int
	era         uint32
}

var _ port.BatchQueue = (*queue)(nil)

func newQueue(fd int) (*queue, error) {
	// The memory is not the collector's: most of it is never touched.
	mem, err := unix.Mmap(-1, 0, maxAhead*stride, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	q := &queue{fd: fd, active: true, iov: make([]unix.Iovec, 0, maxIov), scratch: make([]byte, virtio.NetHeaderLen+maxFrame)}
	q.in.mem = mem
	for i := range maxAhead {
		v, m := &q.in.iov[i], &q.in.messages[i]
		v[0].Base = &q.in.headers[i][0]
		v[1].Base = &mem[i*stride+vlanTag] // room for a tag that is put back
		v[1].SetLen(maxFrame - vlanTag)
		m.hdr.Iov = &v[0]
		m.hdr.SetIovlen(2)
	}
	return q, nil
}

func (q *queue) close() error { return unix.Munmap(q.in.mem) }

// FD returns the descriptor to poll.
func (q *queue) FD() int { return q.fd }

// Readable does nothing: the socket is read until it has nothing.
func (q *queue) Readable() {}

// Recv returns the next frame, see [port.PortQueue]. Frames are read many at a time
// and copied; where that hits memory that is gone, it faults.
func (q *queue) Recv(bufs [][]byte) (int, error) {
	in := &q.in
	if era := q.era.Load(); era != in.era {
		in.next, in.count, in.era, q.cutting = 0, 0, era, false
	}
	if q.cutting {
		if n, err, ok := q.nextSegment(bufs); ok {
			return n, err
		}
	}
	for in.next == in.count {
		if errno := q.read(); errno != 0 {
			return 0, q.recvError(errno)
		}
	}
	i := in.next
	in.next++
	return q.hand(bufs, i)
}

// read reads frames. It returns 0 after a time that the link went down too.
func (q *queue) read() syscall.Errno {
	in := &q.in
	in.next, in.count = 0, 0
	hdr := int(q.kernelHdr.Load())
	for i := range in.messages {
		m := &in.messages[i]
		in.iov[i][0].SetLen(hdr)
		in.aux[i].status = 0
		m.control(&in.aux[i])
	}
	n, errno := recvmmsg(q.fd, in.messages[:])
	switch errno {
	case 0:
		in.count = n
		return 0
	case unix.ENETDOWN:
		// It is said once. The socket is there again when the link is.
		q.c[linkLost].inc()
		return 0
	case unix.EINTR:
		return 0
	}
	return errno
}

func (q *queue) recvError(errno syscall.Errno) error {
	if errno == unix.EAGAIN {
		return port.ErrWouldBlock
	}
	q.c[rxRefused].inc()
	return dropped(errno)
}

// hand gives frame i to the driver, or its first segment.
func (q *queue) hand(bufs [][]byte, i int) (int, error) {
	in := &q.in
	m, aux := &in.messages[i], &in.aux[i]
	hdr := int(q.kernelHdr.Load())
	n := int(m.n) - hdr
	if m.hdr.Flags&unix.MSG_TRUNC != 0 || n < 14 {
		q.c[rxTooLong].inc()
		return 0, dropped(unix.EMSGSIZE)
	}
	at := i*stride + vlanTag
	var h virtio.NetHeader
	h.Decode(in.headers[i][:])
	h.NumBuffers = 0
	if aux.status&unix.TP_STATUS_VLAN_VALID != 0 {
		at, n = at-vlanTag, n+vlanTag
		putVLAN(in.mem[at:], aux)
		if h.Flags&virtio.NetHdrFNeedsCSum != 0 {
			h.CSumStart += vlanTag
		}
		if h.HdrLen != 0 {
			h.HdrLen += vlanTag
		}
		q.c[rxVLAN].inc()
	}
	frame := in.mem[at : at+n]
	guest := virtio.Features(q.guest.Load())
	if !guest.Has(virtio.FeatureGuestCSum) {
		// The kernel marks what it has checked, whoever it is for.
		h.Flags &^= virtio.NetHdrFDataValid
	}
	switch need := offload.Needs(&h) &^ guest; {
	case need == 0:
		return q.deliver(bufs, &h, frame)
	case h.GSOType == virtio.GSONone:
		if !offload.Complete(frame, int(h.CSumStart), int(h.CSumOffset)) {
			q.c[rxOffload].inc()
			return 0, errOffload
		}
		q.c[rxChecksum].inc()
		return q.deliver(bufs, &virtio.NetHeader{}, frame)
	case !q.cut.Start(frame, &h):
		q.c[rxOffload].inc()
		return 0, errOffload
	}
	q.c[rxSegmented].inc()
	if q.segment == nil {
		q.segment = make([]byte, maxFrame)
	}
	q.cutting = true
	n, err, _ := q.nextSegment(bufs)
	return n, err
}

// nextSegment hands the next segment over; ok is false if there is none.
func (q *queue) nextSegment(bufs [][]byte) (n int, err error, ok bool) {
	s := q.cut.Next(q.segment)
	if s == nil {
		q.cutting = false
		return 0, nil, false
	}
	n, err = q.deliver(bufs, &virtio.NetHeader{}, s)
	return n, err, true
}

// putVLAN puts a tag back that the kernel has taken out of a frame, which begins
// behind room for it.
func putVLAN(f []byte, aux *auxdata) {
	copy(f[:12], f[vlanTag:])
	tpid := uint16(0x8100)
	if aux.status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
		tpid = aux.vlanTPID
	}
	binary.BigEndian.PutUint16(f[12:], tpid)
	binary.BigEndian.PutUint16(f[14:], aux.vlanTCI)
}

// deliver copies a header and a frame into bufs.
func (q *queue) deliver(bufs [][]byte, h *virtio.NetHeader, frame []byte) (int, error) {
	var head [virtio.NetHeaderLen]byte
	h.Encode(head[:])
	hdr := head[:q.hdrLen.Load()]
	n := len(hdr) + len(frame)
	for _, b := range bufs {
		if len(hdr) > 0 {
			c := copy(b, hdr)
			hdr, b = hdr[c:], b[c:]
		}
		if frame = frame[copy(b, frame):]; len(frame) == 0 && len(hdr) == 0 {
			return n, nil
		}
	}
	return n, port.ErrTruncated
}

// Send sends one frame, see [port.PortQueue].
func (q *queue) Send(bufs [][]byte) error {
	var errs [1]error
	q.one[0] = bufs
	q.SendBatch(q.one[:], errs[:])
	q.one[0] = nil
	return errs[0]
}

// SendBatch is Send for up to len(errs) frames, in order, with an error for each.
// Behind the first port.ErrWouldBlock there are only others.
func (q *queue) SendBatch(frames [][][]byte, errs []error) {
	for len(frames) > 0 {
		n := q.sendSome(frames, errs)
		if errs[n-1] == port.ErrWouldBlock {
			for i := range errs[n:len(frames)] {
				errs[n+i] = port.ErrWouldBlock
			}
			return
		}
		frames, errs = frames[n:], errs[n:]
	}
}

// sendSome deals with at least one frame and returns with how many.
func (q *queue) sendSome(frames [][][]byte, errs []error) int {
	n, bytes, iov := 0, 0, q.iov
	for n < min(len(frames), maxBatch) && bytes < maxBatchBytes {
		from := len(iov)
		to, size, errno := q.vector(iov, frames[n], n == 0)
		if errno != 0 {
			if n > 0 {
				break // those before it first
			}
			errs[0] = q.sendError(errno)
			return 1
		}
		iov = to
		m := &q.out[n].hdr
		m.Iov = &iov[from]
		m.SetIovlen(len(iov) - from)
		q.sizes[n] = size
		bytes += size
		n++
	}
	done, errno := sendmmsg(q.fd, q.out[:n])
	for errno == unix.EINTR {
		done, errno = sendmmsg(q.fd, q.out[:n])
	}
	for i := range n {
		q.out[i].hdr.Iov = nil
	}
	clear(iov) // the guest's memory may be unmapped before the next call
	if errno != 0 {
		// The first could not be sent.
		errs[0] = q.sendError(errno)
		return 1
	}
	for i := range done {
		errs[i] = nil
		if int(q.out[i].n) != q.sizes[i] {
			q.c[txRefused].inc()
			errs[i] = errShort
		}
	}
	return done
}

// vector appends a frame's segments and returns its size, with the kernel's header in
// front of it. What has too many goes into scratch memory, which one frame may use.
func (q *queue) vector(iov []unix.Iovec, bufs [][]byte, scratch bool) (to []unix.Iovec, size int, errno syscall.Errno) {
	hdr, cut := int(q.kernelHdr.Load()), int(q.hdrLen.Load()-q.kernelHdr.Load())
	to = iov
	total := 0
	for _, b := range bufs {
		total += len(b)
	}
	switch {
	case total < hdr+cut+14:
		return iov, 0, unix.EINVAL
	case total > hdr+cut+maxFrame:
		return iov, 0, unix.EMSGSIZE
	}
	add := func(b []byte) {
		if len(b) > 0 {
			v := unix.Iovec{Base: &b[0]}
			v.SetLen(len(b))
			to = append(to, v)
		}
	}
	if len(to)+len(bufs)+1 > cap(to) || cut > 0 && len(bufs[0]) < hdr+cut {
		if !scratch {
			return iov, 0, unix.EAGAIN
		}
		n := 0
		for _, b := range bufs {
			n += copy(q.scratch[n:], b)
		}
		copy(q.scratch[hdr:], q.scratch[hdr+cut:n])
		add(q.scratch[:n-cut])
		return to, n - cut, 0
	}
	if cut > 0 {
		add(bufs[0][:hdr])
		add(bufs[0][hdr+cut:])
		bufs = bufs[1:]
	}
	for _, b := range bufs {
		add(b)
	}
	return to, total - cut, 0
}

func (q *queue) sendError(errno syscall.Errno) error {
	why := txRefused
	switch errno {
	case unix.EAGAIN:
		return port.ErrWouldBlock
	case unix.EFAULT:
		return guestmem.ErrFault
	case unix.EMSGSIZE:
		why = txTooLong
	case unix.ENETDOWN, unix.ENXIO, unix.ENODEV:
		why = txDown
	case unix.ENOBUFS, unix.ENOMEM:
		why = txNoBuffer
	}
	q.c[why].inc()
	return dropped(errno)
}
