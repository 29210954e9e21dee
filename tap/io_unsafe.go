package tap

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernel is the system-call layer of a running port. The calls are raw: they
// hold the P, which costs less than telling the scheduler, and cannot block
// because the descriptors are ours and O_NONBLOCK.
type kernel struct{}

var _ layer = kernel{}

func (kernel) read(fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), errno
}

func (kernel) write(fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), errno
}

func (kernel) readv(fd int, iov []unix.Iovec) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)))
	return int(n), errno
}

func (kernel) writev(fd int, iov []unix.Iovec) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)))
	return int(n), errno
}
