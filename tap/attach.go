package tap

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// device is where the kernel's TUN/TAP driver is reached.
const device = "/dev/net/tun"

// attach opens a new queue on the TAP of that name, which the kernel creates if
// there is none, and checks what it got.
func attach(name string, multi bool) (fd int, real string, err error) {
	want := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if multi {
		want |= unix.IFF_MULTI_QUEUE
	}
	fd, err = unix.Open(device, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, "", failed("open "+device, "", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
			fd = -1
		}
	}()
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return fd, "", failed("attach", name, err)
	}
	ifr.SetUint16(want)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return fd, "", failed("attach", name, err)
	}
	// When the TAP has a queue already, the kernel keeps that one's mode and
	// says nothing: without IFF_VNET_HDR every frame would be off by a header.
	got, err := unix.NewIfreq("")
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.TUNGETIFF, got)
	}
	if err != nil {
		return fd, "", failed("read flags of", name, err)
	}
	const mask = unix.IFF_TUN | unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE
	if flags := got.Uint16() & mask; flags != want {
		return fd, "", failed("attach", name, fmt.Errorf("%w: %#x, not %#x", ErrFlags, flags, want))
	}
	return fd, got.Name(), nil
}

// checkName refuses what the kernel would refuse, or cut short.
func checkName(name string) error {
	switch {
	case len(name) >= unix.IFNAMSIZ:
		return fmt.Errorf("%w: %w", ErrName, unix.ENAMETOOLONG)
	case name == "", name == ".", name == "..", strings.ContainsAny(name, "/: \t\n\v\f\r\x00"):
		return ErrName
	}
	return nil
}

func setOwner(fd int, owner, group *uint32) error {
	if owner != nil {
		if err := unix.IoctlSetInt(fd, unix.TUNSETOWNER, int(*owner)); err != nil {
			return err
		}
	}
	if group != nil {
		return unix.IoctlSetInt(fd, unix.TUNSETGROUP, int(*group))
	}
	return nil
}

// setQueue attaches or detaches an open queue (unix.IFF_ATTACH_QUEUE,
// unix.IFF_DETACH_QUEUE).
func setQueue(fd int, flag uint16) error {
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return err
	}
	ifr.SetUint16(flag)
	return unix.IoctlIfreq(fd, unix.TUNSETQUEUE, ifr)
}
