package uring

import (
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxEntries is the most requests that one submission can have here.
const MaxEntries = 1024

// What linux/io_uring.h defines, as far as it is used.
const (
	opReadv  = 1
	opWritev = 2

	offSQ   = 0
	offCQ   = 0x8000000
	offSQEs = 0x10000000

	setupSubmitAll = 1 << 7 // one bad request does not end a submission
	enterGetEvents = 1 << 0

	rwfNowait = 8
)

// sqe is struct io_uring_sqe.
type sqe struct {
	opcode, flags uint8
	ioprio        uint16
	fd            int32
	off           uint64
	addr          uint64
	len           uint32
	rwFlags       uint32
	userData      uint64
	_             [3]uint64
}

// cqe is struct io_uring_cqe.
type cqe struct {
	userData uint64
	res      int32
	flags    uint32
}

type sqOffsets struct {
	head, tail, ringMask, ringEntries, flags, dropped, array, _ uint32
	_                                                           uint64
}

type cqOffsets struct {
	head, tail, ringMask, ringEntries, overflow, cqes, flags, _ uint32
	_                                                           uint64
}

// params is struct io_uring_params.
type params struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFD uint32
	_                                                                      [3]uint32
	sq                                                                     sqOffsets
	cq                                                                     cqOffsets
}

// Ring is an io_uring. One goroutine at a time uses it.
type Ring struct {
	fd                  int
	sqMem, cqMem, arena []byte

	sqHead, sqTail *uint32
	cqHead, cqTail *uint32
	cqMask         uint32
	sqes           []sqe
	cqes           []cqe
	// n is how many requests are prepared; keep has their segments, which the
	// garbage collector does not see in sqes.
	n       int
	keep    [][]unix.Iovec
	results []syscall.Errno
	sizes   []int
}

// New makes a ring for up to that many requests a submission, 1 to [MaxEntries]. The
// error wraps the kernel's errno: ENOSYS, EPERM or EINVAL where there is no such
// ring.
func New(entries int) (r *Ring, err error) {
	if entries < 1 || entries > MaxEntries {
		return nil, fmt.Errorf("uring: %d entries: want 1 to %d", entries, MaxEntries)
	}
	entries = 1 << bits.Len(uint(entries-1))
	p := params{flags: setupSubmitAll}
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return nil, fmt.Errorf("uring: setup: %w", errno)
	}
	r = &Ring{
		fd: int(fd), keep: make([][]unix.Iovec, entries),
		results: make([]syscall.Errno, entries), sizes: make([]int, entries),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
			r = nil
		}
	}()
	u32 := int(unsafe.Sizeof(uint32(0)))
	for _, m := range []struct {
		to     *[]byte
		offset int64
		size   int
	}{
		{&r.sqMem, offSQ, int(p.sq.array) + int(p.sqEntries)*u32},
		{&r.cqMem, offCQ, int(p.cq.cqes) + int(p.cqEntries)*int(unsafe.Sizeof(cqe{}))},
		{&r.arena, offSQEs, int(p.sqEntries) * int(unsafe.Sizeof(sqe{}))},
	} {
		*m.to, err = unix.Mmap(r.fd, m.offset, m.size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
		if err != nil {
			return r, fmt.Errorf("uring: mmap: %w", err)
		}
	}
	at := func(mem []byte, offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&mem[offset])) }
	r.sqHead, r.sqTail = at(r.sqMem, p.sq.head), at(r.sqMem, p.sq.tail)
	r.cqHead, r.cqTail = at(r.cqMem, p.cq.head), at(r.cqMem, p.cq.tail)
	r.cqMask = *at(r.cqMem, p.cq.ringMask)
	r.sqes = unsafe.Slice((*sqe)(unsafe.Pointer(&r.arena[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*cqe)(unsafe.Pointer(&r.cqMem[p.cq.cqes])), p.cqEntries)
	// Slot i of the submission queue is always entry i.
	slots := unsafe.Slice(at(r.sqMem, p.sq.array), p.sqEntries)
	for i := range slots {
		slots[i] = uint32(i)
	}
	return r, nil
}

// Entries is how many requests can be prepared for a submission.
func (r *Ring) Entries() int { return len(r.sqes) }

// Readv prepares what readv does. iov and the memory that it describes must stay as
// they are until Submit has returned. It panics if there are Entries requests
// already.
func (r *Ring) Readv(fd int, iov []unix.Iovec) { r.prepare(opReadv, fd, iov) }

// Writev prepares what writev does; see Readv.
func (r *Ring) Writev(fd int, iov []unix.Iovec) { r.prepare(opWritev, fd, iov) }

func (r *Ring) prepare(op uint8, fd int, iov []unix.Iovec) {
	r.keep[r.n] = iov
	tail := *r.sqTail + uint32(r.n)
	r.sqes[tail&uint32(len(r.sqes)-1)] = sqe{
		opcode: op, fd: int32(fd), off: ^uint64(0),
		addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(iov)))), len: uint32(len(iov)),
		rwFlags: rwfNowait, userData: uint64(r.n),
	}
	r.sizes[r.n] = 0
	r.results[r.n] = unix.ECANCELED
	r.n++
}

// Submit executes what is prepared, in order. It returns the number of bytes that
// each request moved and what was wrong with it, 0 if nothing: EOPNOTSUPP if the
// descriptor's kind cannot tell that it would block, ECANCELED if the request was
// never begun. What it returns is valid until the next request is prepared.
func (r *Ring) Submit() ([]int, []syscall.Errno) {
	n := r.n
	r.n = 0
	if n == 0 {
		return nil, nil
	}
	first := *r.sqTail
	atomic.StoreUint32(r.sqTail, first+uint32(n))
	left := n
	for tries := 0; left > 0 && tries < maxTries; tries++ {
		// The call does not wait for anything: the goroutine keeps its processor.
		took, _, errno := unix.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(left), 0, 0, 0, 0)
		if errno == 0 {
			left -= int(took)
		} else if errno != unix.EINTR && errno != unix.EAGAIN && errno != unix.EBUSY {
			break
		}
	}
	// What the kernel has not looked at is not looked at later.
	begun := int(atomic.LoadUint32(r.sqHead) - first)
	atomic.StoreUint32(r.sqTail, first+uint32(begun))
	for done := r.reap(); done < begun; done += r.reap() {
		// None is executed later than it is submitted; if one was nevertheless, its
		// memory must not be touched before it has ended.
		unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), 0, 1, enterGetEvents, 0, 0)
	}
	clear(r.keep[:n])
	return r.sizes[:n], r.results[:n]
}

// maxTries bounds how often a submission is tried that the kernel cannot take for
// want of memory.
const maxTries = 8

// reap takes what is completed.
func (r *Ring) reap() (n int) {
	head, tail := *r.cqHead, atomic.LoadUint32(r.cqTail)
	for ; head != tail; head++ {
		c := &r.cqes[head&r.cqMask]
		if i := c.userData; i < uint64(len(r.results)) {
			if c.res >= 0 {
				r.sizes[i], r.results[i] = int(c.res), 0
			} else {
				r.results[i] = syscall.Errno(-c.res)
			}
		}
		n++
	}
	atomic.StoreUint32(r.cqHead, head)
	return n
}

// Close gives the ring back. Nothing may be prepared.
func (r *Ring) Close() error {
	var errs []error
	for _, m := range []*[]byte{&r.sqMem, &r.cqMem, &r.arena} {
		if *m != nil {
			errs = append(errs, unix.Munmap(*m))
			*m = nil
		}
	}
	if r.fd >= 0 {
		errs = append(errs, unix.Close(r.fd))
		r.fd = -1
	}
	return errors.Join(errs...)
}
