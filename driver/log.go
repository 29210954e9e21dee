package driver

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

// errNoLog means that the device cannot log, or was not asked whether it can.
var errNoLog = errors.New("driver: no dirty log: it takes Config.DirtyLog and VHOST_USER_PROTOCOL_F_LOG_SHMFD")

// StartLog makes the device note what it writes to guest memory, as a VMM does when a
// migration begins; it may be called again, for a new log. Rings go on meanwhile.
// It needs [Config].DirtyLog. As Pause, it is for one goroutine at a time.
func (d *Driver) StartLog() error {
	if d.protocol&vhostuser.ProtocolLogSHMFD == 0 {
		return errNoLog
	}
	l, fd, size, err := d.newLog()
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := d.fe.SetLogBase(fd, size, 0); err != nil {
		l.Release()
		return fmt.Errorf("driver: set log base: %w", err)
	}
	d.log.Release()
	d.log = l
	return d.switchLog(virtio.FeatureLogAll)
}

// StopLog ends what StartLog began. What is in the log can still be taken.
func (d *Driver) StopLog() error { return d.switchLog(0) }

func (d *Driver) switchLog(bit virtio.Features) error {
	if err := d.fe.SetFeatures(d.features | d.offer&virtio.FeatureProtocolFeatures | bit); err != nil {
		return fmt.Errorf("driver: logging: %w", err)
	}
	d.logging = bit != 0
	for _, q := range d.rings[:d.started] {
		if err := d.setAddr(q); err != nil {
			return fmt.Errorf("driver: logging: virtqueue %d: %w", q.index, err)
		}
	}
	// Something with a reply, so that all of it was done.
	if _, err := d.fe.GetFeatures(); err != nil {
		return fmt.Errorf("driver: logging: %w", err)
	}
	return nil
}

// newLog makes a log for all of guest memory.
func (d *Driver) newLog() (l *guestmem.Log, fd int, size uint64, err error) {
	size = (guestBase+uint64(len(d.mem.b)))/guestmem.LogPage/8 + 1
	if fd, err = unix.MemfdCreate("vhostnet-log", unix.MFD_CLOEXEC); err != nil {
		return nil, -1, 0, fmt.Errorf("driver: log: memfd_create: %w", err)
	}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		l, err = guestmem.NewLog(fd, size, 0)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, -1, 0, fmt.Errorf("driver: log of %d bytes: %w", size, err)
	}
	return l, fd, size, nil
}

// TakeLog clears the log and calls f with the guest address of each page of
// [guestmem.LogPage] bytes that the device has noted.
func (d *Driver) TakeLog(f func(gpa uint64)) {
	if d.log != nil {
		d.log.Take(f)
	}
}

// Memory returns the guest memory, which is in one piece, and its guest address. It
// is gone after Close.
func (d *Driver) Memory() (gpa uint64, mem []byte) { return guestBase, d.mem.b }

// setAddr tells the device where a virtqueue is, and how it is logged.
func (d *Driver) setAddr(q *queue) error {
	desc, avail, used := q.descArea.user(), q.availArea.user(), q.usedArea.user()
	if d.logging {
		return d.fe.SetVringAddrLog(q.index, desc, avail, used, q.usedArea.guest())
	}
	return d.fe.SetVringAddr(q.index, desc, avail, used)
}
