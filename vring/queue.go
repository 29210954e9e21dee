package vring

import (
	"errors"

	"github.com/vhostnet/vhostnet/guestmem"
)

// MaxSize is the largest size of a virtqueue.
const MaxSize = 32768

// Errors.
var (
	// ErrConfig: a ring's size or addresses are not valid.
	ErrConfig = errors.New("vring: bad configuration")
	// ErrBroken: the driver broke the ring. [*BrokenError] says how.
	ErrBroken = errors.New("vring: broken")
	// ErrDetached: the ring has no memory, since its addresses are not in the
	// memory map it was moved to, or since it was stopped.
	ErrDetached = errors.New("vring: ring has no memory")
)

// BrokenError says why a ring is broken. It is an [ErrBroken].
type BrokenError struct{ Reason error }

func (e *BrokenError) Error() string { return "vring: broken: " + e.Reason.Error() }

// Unwrap makes errors.Is find ErrBroken and the reason.
func (e *BrokenError) Unwrap() []error { return []error{ErrBroken, e.Reason} }

// Queue is the device side of one virtqueue. It belongs to one goroutine, and
// allocates nothing once activated. Its methods read and write guest memory and
// may fault; callers run them in [guestmem.CatchFaults] and give what that
// returns to Break.
//
// A broken queue stays broken until it is stopped: Pop says why, and the other
// methods touch neither the driver's memory nor the indices that State reports.
type Queue interface {
	// Size returns the number of descriptors.
	Size() int
	// Fresh reports whether the ring was started at its very beginning, by a driver
	// that has just begun to use it.
	Fresh() bool
	// Pop appends up to limit chains to b and returns how many. It returns fewer
	// when the driver has no more, when b is full, and after long chains, to keep
	// a burst short; 0 only if there are none or b is full. The error is an
	// ErrBroken, or ErrDetached, and then no chain was popped.
	//
	// Chains that break the rules come with a Fault. They are completed with 0,
	// which gives the driver its descriptors back.
	Pop(b *Batch, limit int) (int, error)
	// Unpop gives back the last n chains that were popped and not completed; the
	// next Pop meets them again.
	Unpop(n int)
	// Complete gives a chain back with the number of bytes written to it, at most
	// its WriteLen. The driver sees it only after Publish. Chains are completed
	// in the order in which they were popped.
	Complete(c *Chain, written uint32)
	// PopPlain pops chains as long as they are one buffer each, of which no byte is
	// in a table or another memory region than its first, which the device may
	// write to (write) or not (!write), and returns how many: ids[i] is what the
	// driver calls chain i, bufs[i] its buffer, at most as many as the shorter of
	// the two. 0 means that Pop has to tell what there is, if there is anything.
	// bufs are valid as long as the queue keeps its memory map.
	PopPlain(ids []uint16, bufs [][]byte, write bool) int
	// CompletePlain is Complete for chains from PopPlain, lens[i] bytes having been
	// written to that of ids[i], at most its length; lens is nil for none.
	CompletePlain(ids []uint16, lens []uint32)
	// Publish makes all completed chains visible with one store.
	Publish()
	// Unpublished returns how many chains are completed and not published.
	Unpublished() int
	// NeedSignal decides whether the driver is to be notified of what was
	// published (virtio 1.4, "Used Buffer Notification Suppression"). With
	// EVENT_IDX that is so if the driver named one of the entries since the last
	// true, of which a ring's worth counts: a decision that finds notifications
	// suppressed must not make a later one believe that they were sent. The first
	// decision after activation is always true, since what the driver was told
	// before is not known. With nothing published since the last decision it is
	// false.
	NeedSignal() bool
	// Unsignalled returns how many chains were published since the last decision.
	Unsignalled() int
	// DriverEvent returns the used index that the driver has asked to be
	// notified at, and whether that has moved since the last call. An index that
	// the ring cannot reach soon is that of a driver that has put it out of the way
	// while it polls: it counts as no movement, and the one before is returned. It
	// is 0 and false without EVENT_IDX. In a packed ring used descriptors are
	// counted, from anywhere, and a driver that polls says so.
	DriverEvent() (idx uint16, moved bool)
	// AvailCount returns how many chains the driver has made available that are
	// not popped, at most Size. It is not 0 if Pop would break the ring.
	AvailCount() int
	// InFlight returns how many chains are popped and not completed.
	InFlight() int
	// DisableKicks tells the driver that it need not notify.
	DisableKicks()
	// EnableKicks asks the driver to notify, and reports whether it has made
	// chains available meanwhile, for which it will not.
	EnableKicks() (more bool)
	// Rebind moves the ring to another memory map, of which it takes a reference;
	// its addresses are translated anew, its indices kept. No popped chain may be
	// outstanding. On error, which wraps [ErrConfig], the ring lets go of the old
	// map as well and has no memory until another Rebind, or SetAddr, succeeds.
	Rebind(m *guestmem.Map) error
	// SetAddr changes the ring's addresses, which have the meaning of those in
	// [Config]. On error, which wraps [ErrConfig], nothing changes.
	SetAddr(desc, driver, device uint64) error
	// SetLog changes where writes to guest memory are noted from now on. What the
	// queue writes to the ring it notes itself: before the driver can see it what
	// lies behind the index, or the descriptor, that publishes it, and that
	// afterwards. Nothing may be completed and not published.
	SetLog(l Logging)
	// Dirty notes that the device has written b, from a buffer of a popped chain.
	// It is called behind the write, and before the chain is published.
	Dirty(b []byte)
	// Broken returns nil, or an ErrBroken.
	Broken() error
	// Break makes the ring broken, for a reason found outside of it. The first
	// reason stays.
	Break(reason error)
	// Stop ends the ring's life and lets go of the memory map. Chains that were
	// popped and not completed count as given back. Of a split ring so do those
	// completed and not published, the driver not having been told of either, and
	// guest memory is not touched. In a packed ring they have taken the place of
	// what the driver had made available, so they are published.
	Stop() State
}

// Activate validates c against m and returns the ring, ready to be processed
// from c.Base on: a packed one if the features say so. It takes a reference to m.
// Errors wrap [ErrConfig]. It reads guest memory, so it may fault.
//
// The used index of a split ring goes on from where it is in memory. A base that
// lies behind it, which front-ends send when they lost track of a back-end that
// died, is not believed: what was used is not used twice. A packed ring has no
// index in memory, so its base is believed.
func Activate(m *guestmem.Map, c Config) (Queue, error) {
	if err := c.CheckSize(); err != nil {
		return nil, err
	}
	if c.packed() {
		q, err := newPacked(m, c)
		if err != nil {
			return nil, err
		}
		return q, nil
	}
	q, err := newSplit(m, c)
	if err != nil {
		return nil, err
	}
	return q, nil
}
