package scripted

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/virtio"
)

// Hang bounds every wait: what has not happened by then never will.
const Hang = 30 * time.Second

// ErrHang says that something did not happen in time.
var ErrHang = errors.New("scripted: it hangs")

// Desc is a descriptor as it lies in the table.
type Desc struct {
	Addr        uint64
	Len         uint32
	Flags, Next uint16
}

// Seg is a buffer of a chain.
type Seg struct {
	Addr  uint64
	Len   uint32
	Write bool // for the device to write
}

// Ring is the driver's half of a split ring.
type Ring struct {
	Index, Size int
	// Desc, Avail and Used are guest addresses.
	Desc, Avail, Used uint64
	// Kick, Call and Err are eventfds.
	Kick, Call, Err int
	// Next is the available index behind the last entry that was put; Seen is
	// the used index behind the last element that was reaped. They run freely.
	Next, Seen uint16

	mem    *Memory
	free   []uint16            // descriptors that no chain has
	chains map[uint16][]uint16 // descriptors by head
}

// Reset forgets all chains and clears the ring's memory, as a driver does that
// starts anew. The ring begins at the given index.
func (r *Ring) Reset(base uint16) {
	clear(r.mem.At(r.Desc, 16*r.Size))
	clear(r.mem.At(r.Avail, 6+2*r.Size))
	clear(r.mem.At(r.Used, 6+8*r.Size))
	r.Next, r.Seen = base, base
	r.mem.View.Store16(int(r.Avail)+2, base)
	r.mem.View.Store16(int(r.Used)+2, base)
	r.chains = make(map[uint16][]uint16)
	r.free = r.free[:0]
	for i := r.Size - 1; i >= 0; i-- {
		r.free = append(r.free, uint16(i))
	}
}

// SetDesc writes descriptor i as it stands.
func (r *Ring) SetDesc(i int, d Desc) {
	at := int(r.Desc) + 16*i
	r.mem.View.Store64(at, d.Addr)
	r.mem.View.Store32(at+8, d.Len)
	r.mem.View.Store32(at+12, uint32(d.Flags)|uint32(d.Next)<<16)
}

// Add makes a chain of free descriptors and puts it on the available ring. The
// device does not see it before Publish.
func (r *Ring) Add(segs ...Seg) (head uint16, err error) {
	if len(segs) == 0 || len(segs) > len(r.free) {
		return 0, fmt.Errorf("scripted: ring %d: %d free descriptors, want %d", r.Index, len(r.free), len(segs))
	}
	at := len(r.free) - len(segs)
	chain := append([]uint16(nil), r.free[at:]...)
	r.free = r.free[:at]
	for i, s := range segs {
		d := Desc{Addr: s.Addr, Len: s.Len}
		if s.Write {
			d.Flags |= virtio.DescFWrite
		}
		if i+1 < len(segs) {
			d.Flags |= virtio.DescFNext
			d.Next = chain[i+1]
		}
		r.SetDesc(int(chain[i]), d)
	}
	r.chains[chain[0]] = chain
	r.Put(chain[0])
	return chain[0], nil
}

// Put writes the next entry of the available ring, whatever it is.
func (r *Ring) Put(head uint16) {
	r.mem.View.Store16(int(r.Avail)+4+2*(int(r.Next)%r.Size), head)
	r.Next++
}

// Publish shows the device what was put.
func (r *Ring) Publish() { r.PublishAt(r.Next) }

// PublishAt sets the available index, whatever it is.
func (r *Ring) PublishAt(idx uint16) { r.mem.View.Store16(int(r.Avail)+2, idx) }

// Notify signals the kick descriptor.
func (r *Ring) Notify() error { return Signal(r.Kick) }

// UsedIdx is the used index as the device last wrote it.
func (r *Ring) UsedIdx() uint16 { return r.mem.View.Load16(int(r.Used) + 2) }

// UsedFlags are the used ring's flags (virtio.UsedFNoNotify).
func (r *Ring) UsedFlags() uint16 { return r.mem.View.Load16(int(r.Used)) }

// UsedElem is the used element of index i.
func (r *Ring) UsedElem(i uint16) (id, n uint32) {
	at := int(r.Used) + 4 + 8*(int(i)%r.Size)
	return r.mem.View.Load32(at), r.mem.View.Load32(at + 4)
}

// AvailEvent is the available index at which the device wants to be kicked.
func (r *Ring) AvailEvent() uint16 { return r.mem.View.Load16(int(r.Used) + 4 + 8*r.Size) }

// SetUsedEvent sets the used index at which the driver wants to be called.
func (r *Ring) SetUsedEvent(idx uint16) { r.mem.View.Store16(int(r.Avail)+4+2*r.Size, idx) }

// SetAvailFlags sets the available ring's flags (virtio.AvailFNoInterrupt).
func (r *Ring) SetAvailFlags(f uint16) { r.mem.View.Store16(int(r.Avail), f) }

// Reap returns the next used element, if there is one, and frees its chain. It
// is an error if the device used what was not available.
func (r *Ring) Reap() (head uint16, n uint32, ok bool, err error) {
	if r.UsedIdx() == r.Seen {
		return 0, 0, false, nil
	}
	id, n := r.UsedElem(r.Seen)
	r.Seen++
	chain, known := r.chains[uint16(id)]
	if id > 0xffff || !known {
		return 0, 0, true, fmt.Errorf("scripted: ring %d: used element %d is descriptor %d, which was not available", r.Index, r.Seen-1, id)
	}
	delete(r.chains, uint16(id))
	r.free = append(r.free, chain...)
	return uint16(id), n, true, nil
}

// Outstanding is how many chains the device has not used yet.
func (r *Ring) Outstanding() int { return len(r.chains) }

// Wait waits for the next used element; it does not need a call.
func (r *Ring) Wait() (head uint16, n uint32, err error) {
	deadline := time.Now().Add(Hang)
	for {
		if head, n, ok, err := r.Reap(); ok {
			return head, n, err
		}
		if time.Now().After(deadline) {
			return 0, 0, fmt.Errorf("%w: ring %d: available %d, used %d", ErrHang, r.Index, r.Next, r.UsedIdx())
		}
		// A call wakes it, and if there is none it looks again.
		if err := wait(r.Call, time.Millisecond); err != nil && !errors.Is(err, ErrHang) {
			return 0, 0, err
		}
		if _, err := Drain(r.Call); err != nil {
			return 0, 0, err
		}
	}
}

// WaitCall waits for a call and takes it. An error that is ErrHang says that none
// came within d.
func (r *Ring) WaitCall(d time.Duration) error {
	if err := wait(r.Call, d); err != nil {
		return err
	}
	_, err := Drain(r.Call)
	return err
}

// wait waits until fd is readable.
func wait(fd int, d time.Duration) error {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	deadline := time.Now().Add(d)
	for {
		n, err := unix.Poll(p, int(max(0, time.Until(deadline)).Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("poll: %w", err)
		case n == 0:
			return ErrHang
		default:
			return nil
		}
	}
}
