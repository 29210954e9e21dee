package afpacket

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// message is struct mmsghdr.
type message struct {
	hdr unix.Msghdr
	n   uint32
	_   [4]byte
}

// auxdata is a control message with struct tpacket_auxdata.
type auxdata struct {
	unix.Cmsghdr
	status, len, snaplen uint32
	mac, net             uint16
	vlanTCI, vlanTPID    uint16
	_                    [4]byte
}

const auxdataSize = unsafe.Sizeof(auxdata{})

// control makes the kernel write a message's control data to a.
func (m *message) control(a *auxdata) {
	m.hdr.Control = (*byte)(unsafe.Pointer(a))
	m.hdr.SetControllen(int(auxdataSize))
}

// The calls are raw: they hold the P, which costs less than telling the scheduler,
// and do not wait.

func recvmmsg(fd int, m []message) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(m))), uintptr(len(m)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

func sendmmsg(fd int, m []message) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(m))), uintptr(len(m)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

// lost is how many frames the socket's buffer had no room for since the last call.
func lost(fd int) (uint32, error) {
	var stats struct{ packets, drops uint32 }
	size := uint32(unsafe.Sizeof(stats))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS,
		uintptr(unsafe.Pointer(&stats)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, errno
	}
	return stats.drops, nil
}
