package tap

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/port"
)

const (
	// maxBatch is how many frames one system call moves, maxBatchBytes after how many
	// bytes it takes no further ones: nobody else gets the goroutine's processor, and
	// no garbage collection begins, before it returns.
	maxBatch      = 64
	maxBatchBytes = 128 << 10
	// maxAhead is how many frames are read ahead. Each has room for the largest
	// one; the stride is such that the beginnings of short frames do not compete
	// for the same lines of a cache.
	maxAhead    = 32
	aheadStride = 65536 + 2176
	// bulk is from which length on a frame is better read straight into the
	// driver's memory: the second copy costs more than a system call. bulkFrames is
	// how many shorter ones have to follow.
	bulk       = 4096
	bulkFrames = 16
)

// batch is many system calls in one, see package uring; tests put their own below a
// queue.
type batch interface {
	Entries() int
	Readv(fd int, iov []unix.Iovec)
	Writev(fd int, iov []unix.Iovec)
	Submit() ([]int, []syscall.Errno)
	Close() error
}

// ahead are frames that were read before they were asked for.
type ahead struct {
	mem []byte // maxAhead times aheadStride, nil as long as it is not needed
	iov []unix.Iovec
	// Of count results the next one is due.
	sizes       [maxAhead]int
	errs        [maxAhead]syscall.Errno
	next, count int
	// drained: behind these there was nothing, and nothing was reported since.
	drained bool
	// want is how many frames will be read.
	want int
	// bulk is how many frames are left to be read one by one.
	bulk int
	// era is the queue's when they were read.
	era uint32
}

// Readable says that the descriptor has become readable.
func (q *queue) Readable() { q.ahead.drained = false }

// recvAhead is Recv out of what was read ahead; ok is false if Recv has to read.
func (q *queue) recvAhead(bufs [][]byte) (n int, err error, ok bool) {
	a := &q.ahead
	if era := q.era.Load(); era != a.era {
		*a = ahead{mem: a.mem, iov: a.iov, era: era}
	}
	for {
		if a.next == a.count {
			switch {
			case a.drained:
				a.drained = false
				return 0, port.ErrWouldBlock, true
			case a.bulk > 0 || !q.readAhead():
				return 0, nil, false
			case a.count == 0:
				a.drained = false
				return 0, port.ErrWouldBlock, true
			}
		}
		i := a.next
		a.next++
		switch errno := a.errs[i]; errno {
		case 0:
			n, err = q.fromAhead(bufs, i)
			return n, err, true
		case unix.EAGAIN, unix.EINTR, unix.ECANCELED:
			// Nothing was read.
		default:
			return 0, recvError(errno), true
		}
	}
}

// fromAhead copies frame i into bufs.
func (q *queue) fromAhead(bufs [][]byte, i int) (int, error) {
	n := q.ahead.sizes[i]
	frame := q.ahead.mem[i*aheadStride:][:n]
	if n >= frameRoom {
		return n, port.ErrTruncated
	}
	if n > 0 && q.plain.Load() {
		frame[0] = 0 // see received
	}
	for _, b := range bufs {
		if frame = frame[copy(b, frame):]; len(frame) == 0 {
			return n, nil
		}
	}
	return n, port.ErrTruncated
}

// readAhead reads as many frames as are likely to be there. It returns false if that
// cannot be done.
func (q *queue) readAhead() bool {
	a := &q.ahead
	a.next, a.count = 0, 0
	if a.mem == nil && !a.start() {
		return false
	}
	a.want = min(max(a.want, 2), maxAhead, q.batch.Entries())
	for i := range a.want {
		q.batch.Readv(q.fd, a.iov[i:i+1])
	}
	sizes, errs := q.batch.Submit()
	switch errs[0] {
	case unix.EOPNOTSUPP, unix.EINVAL, unix.ENOSYS:
		q.single()
		return false
	case unix.ECANCELED, unix.EINTR:
		return false // this time
	}
	got := 0
	for i := range sizes {
		a.sizes[i], a.errs[i] = sizes[i], errs[i]
		if errs[i] != unix.EAGAIN {
			a.count = i + 1
		}
		if errs[i] == 0 {
			got++
		}
		if sizes[i] > bulk {
			a.bulk = bulkFrames
		}
	}
	a.drained = a.count < len(sizes)
	if a.drained {
		a.want = got + 1
	} else {
		a.want *= 2
	}
	return true
}

// start makes the memory. It is not the collector's: most of it is never touched.
func (a *ahead) start() bool {
	mem, err := unix.Mmap(-1, 0, maxAhead*aheadStride, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return false
	}
	a.mem, a.iov = mem, make([]unix.Iovec, maxAhead)
	for i := range a.iov {
		a.iov[i].Base = &mem[i*aheadStride]
		a.iov[i].SetLen(frameRoom)
	}
	return true
}

// readSingly notes the size of a frame that was not read ahead.
func (a *ahead) readSingly(n int) {
	switch {
	case n > bulk:
		a.bulk = bulkFrames
	case a.bulk > 0:
		a.bulk--
	}
}

// single gives batches up.
func (q *queue) single() {
	if q.batch != nil {
		_ = q.batch.Close()
		q.batch = nil
	}
}

// close releases everything but the descriptor.
func (q *queue) close() error {
	q.single()
	if mem := q.ahead.mem; mem != nil {
		q.ahead = ahead{}
		return unix.Munmap(mem)
	}
	return nil
}

// SendBatch is Send for up to len(errs) frames, in order, with an error for each.
// Behind the first port.ErrWouldBlock there are only others: no frame overtakes one
// that is to be sent again.
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

// sendSome sends at least one frame, or finds that it would block, and returns with
// how many frames it has dealt.
func (q *queue) sendSome(frames [][][]byte, errs []error) int {
	n, bytes, iov := 0, 0, q.iov
	if q.batch != nil && len(frames) > 1 {
		for n < min(len(frames), maxBatch, q.batch.Entries()) && bytes < maxBatchBytes {
			from := len(iov)
			var ok bool
			if iov, q.sizes[n], ok = vector(iov, frames[n]); !ok {
				break
			}
			q.batch.Writev(q.fd, iov[from:])
			bytes += q.sizes[n]
			n++
		}
	}
	if n == 0 {
		errs[0] = q.Send(frames[0])
		return 1
	}
	sizes, errnos := q.batch.Submit()
	clear(iov) // the guest's memory may be unmapped before the next call
	if errnos[0] == unix.EOPNOTSUPP {
		q.single()
	}
	last := n - 1
	for last >= 0 && errnos[last] != 0 {
		last--
	}
	for i, errno := range errnos {
		switch errno {
		case unix.EAGAIN, unix.EINTR, unix.ECANCELED, unix.EOPNOTSUPP:
			errs[i] = q.Send(frames[i])
			if errs[i] != port.ErrWouldBlock {
				continue
			}
			if i > last {
				return i + 1
			}
			// Others have overtaken it, and it must not come after them.
			errs[i] = dropped(unix.EAGAIN)
		default:
			errs[i] = sendError(errno, sizes[i], q.sizes[i])
		}
	}
	return n
}

// vector appends the segments of a frame and returns its size; ok is false if the
// kernel would not take it like that, or if iov has no room for it.
func vector(iov []unix.Iovec, bufs [][]byte) (to []unix.Iovec, size int, ok bool) {
	to = iov
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		if size += len(b); size > frameRoom || len(to) == cap(to) {
			clear(to[len(iov):])
			return iov, 0, false
		}
		v := unix.Iovec{Base: &b[0]}
		v.SetLen(len(b))
		to = append(to, v)
	}
	return to, size, size > 0
}
