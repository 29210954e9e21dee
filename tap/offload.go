package tap

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/virtio"
)

const (
	hostBase = virtio.FeatureCSum | virtio.FeatureHostTSO4 | virtio.FeatureHostTSO6 |
		virtio.FeatureHostECN | virtio.FeatureHostUFO
	guestTSO  = virtio.FeatureGuestTSO4 | virtio.FeatureGuestTSO6
	guestUSO  = virtio.FeatureGuestUSO4 | virtio.FeatureGuestUSO6
	guestBase = virtio.FeatureGuestCSum | guestTSO | virtio.FeatureGuestECN | virtio.FeatureGuestUFO
)

// drainLimit bounds how many stale frames of a queue are thrown away. A TAP
// holds txqueuelen of them, by default 1000; a host that sends faster than they
// are thrown away must not hold up the start of the device.
const drainLimit = 8192

// tunOffload gives the TUNSETOFFLOAD argument for the features that a driver
// accepted. The kernel takes nothing without CSUM, ECN only with a TSO, and USO
// for both IP versions or for none; what it would refuse is left out, since an
// offload that was accepted need not be used.
func tunOffload(guest virtio.Features) int {
	if !guest.Has(virtio.FeatureGuestCSum) {
		return 0
	}
	arg := unix.TUN_F_CSUM
	if guest.Has(virtio.FeatureGuestTSO4) {
		arg |= unix.TUN_F_TSO4
	}
	if guest.Has(virtio.FeatureGuestTSO6) {
		arg |= unix.TUN_F_TSO6
	}
	if guest.Has(virtio.FeatureGuestECN) && guest&guestTSO != 0 {
		arg |= unix.TUN_F_TSO_ECN
	}
	if guest.Has(virtio.FeatureGuestUFO) {
		arg |= unix.TUN_F_UFO
	}
	if guest.Has(guestUSO) {
		arg |= unix.TUN_F_USO4 | unix.TUN_F_USO6
	}
	return arg
}

func setOffload(fd int, guest virtio.Features) error {
	return unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tunOffload(guest))
}

// probe asks the kernel which offloads it knows and leaves all of them off.
func probe(fd int) (virtio.Features, error) {
	found := guestBase | hostBase
	err := setOffload(fd, guestBase|guestUSO)
	switch {
	case err == nil:
		// Since Linux 6.2, in both directions at once.
		found |= guestUSO | virtio.FeatureHostUSO
	case errors.Is(err, unix.EINVAL):
		if err := setOffload(fd, guestBase); err != nil {
			return 0, err
		}
	default:
		return 0, err
	}
	return found, setOffload(fd, 0)
}

// setHeader sets the size of the virtio-net header, 10, 12 or 20 bytes, and its
// byte order, and reads both back.
func (p *Port) setHeader(fd, size int) error {
	for _, s := range []struct {
		set, get uint
		value    int
	}{
		{unix.TUNSETVNETHDRSZ, unix.TUNGETVNETHDRSZ, size},
		// Little-endian is what VERSION_1 asks for, and on the machines that
		// this runs on it is the native order of older drivers as well.
		{unix.TUNSETVNETLE, unix.TUNGETVNETLE, 1},
	} {
		if err := unix.IoctlSetPointerInt(fd, s.set, s.value); err != nil {
			return err
		}
		if got, err := unix.IoctlGetInt(fd, s.get); err != nil {
			return err
		} else if int32(got) != int32(s.value) {
			return fmt.Errorf("%w: ioctl %#x reads %d, not %d", ErrFlags, s.get, got, s.value)
		}
	}
	p.hdrLen = size
	return nil
}

// Configure starts the port for a driver: the header has hdrLen bytes (10, 12
// or 20), and the offloads towards the driver are those of its GUEST_* features.
// Frames that the host sent before the port was started are thrown away. It may
// be called again while the port runs, when the driver changes its offloads;
// frames that lie in the queues are thrown away then if an offload went.
func (p *Port) Configure(hdrLen int, guest virtio.Features) error {
	if hdrLen != virtio.NetHeaderLenLegacy && hdrLen != virtio.NetHeaderLen && hdrLen != virtio.NetHeaderLenHash {
		return fmt.Errorf("tap: configure %s: header of %d bytes is not supported", p.name, hdrLen)
	}
	guest &= p.offloads & (guestBase | guestUSO)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("tap: configure %s: %w", p.name, unix.EBADF)
	}
	fd := p.queues[0].fd
	if hdrLen != p.hdrLen {
		if err := p.setHeader(fd, hdrLen); err != nil {
			return fmt.Errorf("tap: configure %s: header size: %w", p.name, err)
		}
	}
	if err := setOffload(fd, guest); err != nil {
		return fmt.Errorf("tap: configure %s: offloads: %w", p.name, err)
	}
	for _, q := range p.queues {
		q.plain.Store(!guest.Has(virtio.FeatureGuestCSum))
	}
	if p.fresh || p.guest&^guest != 0 {
		p.drain()
	}
	p.guest, p.fresh = guest, false
	return nil
}

// Reset takes back what Configure set: the next driver, or the next process
// that attaches to a persistent TAP, finds no offload and a 10-byte header.
// Which queues are active stays as it is.
func (p *Port) Reset() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	return p.reset()
}

func (p *Port) reset() error {
	p.fresh = true
	fd := p.queues[0].fd
	if err := errors.Join(setOffload(fd, 0), p.setHeader(fd, virtio.NetHeaderLenLegacy)); err != nil {
		return fmt.Errorf("tap: reset %s: %w", p.name, err)
	}
	p.guest = 0
	for _, q := range p.queues {
		q.plain.Store(true)
	}
	return nil
}

// drain throws away what lies in the queues. It uses memory of its own, since
// workers may be reading at the same time.
func (p *Port) drain() {
	var sink [virtio.NetHeaderMax]byte
	for _, q := range p.queues {
		for range drainLimit {
			if _, errno := q.sys.read(q.fd, sink[:]); errno != 0 && errno != unix.EINTR {
				break
			}
		}
		q.era.Add(1)
	}
}
