package scripted

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
)

// The layout of region R0, guest addresses and sizes in bytes.
const (
	MemorySize = 16 << 20
	UserBase   = 0x7F55_0000_0000
	RingBase   = 0x10000
	RingStride = 0x10000
	AvailPart  = 0x4000
	UsedPart   = 0x8000
	BufferBase = 0x200000
	BufferSize = 2048
	// BufferCount is how many buffers each ring has.
	BufferCount = 256
)

// Memory is guest memory in a memfd.
type Memory struct {
	// FD is the memfd. It stays open until the test ends.
	FD int
	// Bytes is the memory. The device reads and writes it as well: what both
	// sides change is accessed through View.
	Bytes []byte
	View  guestmem.View
	// Region is how HELLO announces it.
	Region guestmem.Region
}

// NewMemory makes zeroed guest memory that lives until the test ends.
func NewMemory(tb testing.TB) *Memory { return NewMemorySize(tb, MemorySize) }

// NewMemorySize makes a memory of size bytes, announced like R0.
func NewMemorySize(tb testing.TB, size int) *Memory {
	tb.Helper()
	fd := Memfd(tb, int64(size))
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		tb.Fatal("mmap:", err)
	}
	tb.Cleanup(func() { _ = unix.Munmap(b) })
	return &Memory{FD: fd, Bytes: b, View: guestmem.NewView(b), Region: guestmem.Region{Size: uint64(size), UserAddr: UserBase}}
}

// Memfd makes an anonymous file of size bytes that is closed when the test ends.
func Memfd(tb testing.TB, size int64) int {
	tb.Helper()
	fd, err := unix.MemfdCreate("scripted", unix.MFD_CLOEXEC)
	if err != nil {
		tb.Fatal("memfd_create:", err)
	}
	tb.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		tb.Fatal("ftruncate:", err)
	}
	return fd
}

// Eventfd makes a non-blocking eventfd that is closed when the test ends.
func Eventfd(tb testing.TB) int {
	tb.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		tb.Fatal("eventfd:", err)
	}
	tb.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// Signal writes 1 to an eventfd.
func Signal(fd int) error {
	b := [8]byte{}
	ne.PutUint64(b[:], 1)
	_, err := unix.Write(fd, b[:])
	return err
}

// Drain reads an eventfd without waiting: how often it was signalled since.
func Drain(fd int) (uint64, error) {
	var b [8]byte
	switch _, err := unix.Read(fd, b[:]); {
	case errors.Is(err, unix.EAGAIN):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("eventfd: %w", err)
	}
	return ne.Uint64(b[:]), nil
}

// Buffer is the guest address of buffer i of ring q.
func (m *Memory) Buffer(q, i int) uint64 {
	return BufferBase + uint64(q*BufferCount+i%BufferCount)*BufferSize
}

// At returns n bytes at a guest address.
func (m *Memory) At(gpa uint64, n int) []byte { return m.Bytes[gpa : gpa+uint64(n)] }

// User turns a guest address into the front-end's.
func (m *Memory) User(gpa uint64) uint64 { return m.Region.UserAddr + gpa }
