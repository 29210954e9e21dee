package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"

	"github.com/vhostnet/vhostnet/netdev"
)

// Device is one that was opened.
type Device interface {
	// Serve serves front-ends until ctx is done and returns nil then. Before that
	// it returns an error, or nil if there will be no more front-ends.
	Serve(ctx context.Context) error
	// Snapshot and SetModeration may be called from any goroutine, also after
	// Close.
	Snapshot() netdev.DeviceSnapshot
	// SetModeration changes the moderation engine of a virtqueue.
	SetModeration(queue int, engine string) error
	// Close releases the device. Serve has returned, or was never called.
	Close() error
}

// Definition describes a device.
type Definition struct {
	// Name is unique in a fleet.
	Name string
	// Port is the host side as KIND:ARGS, for the status of a device that could
	// not be opened.
	Port string
	// Config is what the device is made from. Two definitions whose Configs are
	// deeply equal are of the same device.
	Config any
	// Open opens the device.
	Open func() (Device, error)
	// Once: the device has something that was handed to the process when it
	// started, so that it cannot be opened later, or again.
	Once bool
}

var (
	// ErrExists is wrapped by errors about a name that is taken.
	ErrExists = errors.New("fleet: the device exists")
	// ErrMissing is wrapped by errors about a name that no device has.
	ErrMissing = errors.New("fleet: no such device")
	// ErrOnce is wrapped by errors about definitions that are good at the start of
	// the process only.
	ErrOnce = errors.New("fleet: descriptors are handed down at the start only")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("fleet: closed")
)

// Fleet is a set of devices. Its methods may be called from any goroutine.
type Fleet struct {
	log *slog.Logger

	// change is held over a whole change of the set, opening and closing of
	// devices included. The holder alone writes members and closed, under mu.
	change  sync.Mutex
	applied bool // Apply has been called

	mu      sync.Mutex // for readers; never held while a device is called
	members map[string]*member
	closed  bool
}

// member is a device of the fleet, or what is left of it.
type member struct {
	def Definition
	// listed: it came with Apply.
	listed bool
	dev    Device // nil if it could not be opened
	cancel context.CancelFunc
	done   chan struct{} // closed when the device is

	mu    sync.Mutex
	state string
	err   error
}

// New makes a fleet without devices; nil for log discards its messages.
func New(log *slog.Logger) *Fleet {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Fleet{log: log, members: map[string]*member{}}
}

// Add opens a device and serves it. If that fails, it is not in the fleet.
// Errors wrap ErrExists or ErrOnce, or are those of Open.
func (f *Fleet) Add(d Definition) error {
	f.change.Lock()
	defer f.change.Unlock()
	switch {
	case f.closed:
		return ErrClosed
	case d.Once:
		return fmt.Errorf("%w: %q", ErrOnce, d.Name)
	case f.members[d.Name] != nil:
		return fmt.Errorf("%w: %q", ErrExists, d.Name)
	}
	m := f.open(d)
	if m.dev == nil {
		return m.err
	}
	f.insert(m)
	f.log.Info("device added", "device", d.Name)
	return nil
}

// Remove closes a device and returns when that is done, so that its socket and
// its port are free. The error wraps ErrMissing if there is none of that name.
// What closing failed at is logged: the device is gone in any case.
func (f *Fleet) Remove(name string) error {
	f.change.Lock()
	defer f.change.Unlock()
	m := f.members[name]
	if m == nil {
		return fmt.Errorf("%w: %q", ErrMissing, name)
	}
	f.remove(m)
	f.log.Info("device removed", "device", name)
	return nil
}

// Changes is what an Apply did.
type Changes struct {
	// Added, Changed, Removed and Kept count devices; Failed are those of Added
	// and Changed that could not be opened.
	Added, Changed, Removed, Kept, Failed int
}

// Apply makes the devices that earlier calls have opened those of the list:
// what is missing from it is closed, what is new is opened, what has another
// Config, or has failed, is closed and opened again, and all others are left
// alone. Devices that Add has opened stay. An error means that the list cannot
// be; nothing has changed then. A device that cannot be opened is no error.
func (f *Fleet) Apply(list []Definition) (Changes, error) {
	f.change.Lock()
	defer f.change.Unlock()
	if f.closed {
		return Changes{}, ErrClosed
	}
	if err := f.check(list); err != nil {
		return Changes{}, err
	}
	var c Changes
	wanted := map[string]bool{}
	var todo []Definition
	var old []*member
	for _, d := range list {
		wanted[d.Name] = true
		m := f.members[d.Name]
		switch {
		case m == nil:
			c.Added++
		case m.same(d):
			c.Kept++
			continue
		default:
			old = append(old, m)
			c.Changed++
		}
		todo = append(todo, d)
	}
	for name, m := range f.members {
		if m.listed && !wanted[name] {
			old = append(old, m)
			c.Removed++
		}
	}
	// All that goes is gone before anything comes: a path or an interface may
	// have passed from one device to another.
	f.remove(old...)
	for _, d := range todo {
		m := f.open(d)
		m.listed = true
		if m.dev == nil {
			c.Failed++
			f.log.Error("device failed", "device", d.Name, "error", m.err)
		}
		f.insert(m)
	}
	f.applied = true
	return c, nil
}

// check tells whether the fleet can become that list.
func (f *Fleet) check(list []Definition) error {
	seen := map[string]bool{}
	for _, d := range list {
		m := f.members[d.Name]
		switch {
		case seen[d.Name]:
			return fmt.Errorf("%w: %q is there twice", ErrExists, d.Name)
		case m != nil && !m.listed:
			return fmt.Errorf("%w: %q was added while the process ran", ErrExists, d.Name)
		case d.Once && f.applied && (m == nil || !m.same(d)):
			return fmt.Errorf("%w: %q", ErrOnce, d.Name)
		}
		seen[d.Name] = true
	}
	return nil
}

// same tells whether the device is to be left alone if d is wanted.
func (m *member) same(d Definition) bool {
	if !reflect.DeepEqual(m.def.Config, d.Config) {
		return false
	}
	return d.Once || m.snapshot().State != netdev.StateFailed
}

// open opens a device and starts to serve it.
func (f *Fleet) open(d Definition) *member {
	m := &member{def: d, state: netdev.StateServing, cancel: func() {}, done: make(chan struct{})}
	dev, err := d.Open()
	if err != nil {
		m.state, m.err = netdev.StateFailed, err
		close(m.done)
		return m
	}
	m.dev = dev
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() {
		defer close(m.done)
		err := dev.Serve(ctx)
		state := netdev.StateEnded
		if err != nil {
			state = netdev.StateFailed
			f.log.Error("device failed", "device", d.Name, "error", err)
		} else if ctx.Err() == nil {
			f.log.Info("device ended", "device", d.Name)
		}
		m.set(state, err)
		// What it has, its port above all, is for others now.
		if err := dev.Close(); err != nil {
			f.log.Warn("closing a device", "device", d.Name, "error", err)
		}
	}()
	return m
}

func (f *Fleet) insert(m *member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members[m.def.Name] = m
}

// remove closes devices, all at once.
func (f *Fleet) remove(list ...*member) {
	for _, m := range list {
		m.cancel()
	}
	for _, m := range list {
		<-m.done
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range list {
		delete(f.members, m.def.Name)
	}
}

// Close closes all devices and returns when that is done. No device can be
// added any more.
func (f *Fleet) Close() {
	f.change.Lock()
	defer f.change.Unlock()
	f.mu.Lock()
	f.closed = true
	list := make([]*member, 0, len(f.members))
	for _, m := range f.members {
		list = append(list, m)
	}
	f.mu.Unlock()
	f.remove(list...)
}

// list returns the members by name.
func (f *Fleet) list() []*member {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]*member, 0, len(f.members))
	for _, m := range f.members {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *member) int { return cmp.Compare(a.def.Name, b.def.Name) })
	return list
}

// Snapshots returns what every device looks like, those that failed included,
// in the order of their names.
func (f *Fleet) Snapshots() []netdev.DeviceSnapshot {
	list := f.list()
	snapshots := make([]netdev.DeviceSnapshot, len(list))
	for i, m := range list {
		snapshots[i] = m.snapshot()
	}
	return snapshots
}

// SetModeration changes the moderation engine of a device's virtqueue. The error
// wraps ErrMissing if no device of that name is served.
func (f *Fleet) SetModeration(name string, queue int, engine string) error {
	f.mu.Lock()
	m := f.members[name]
	f.mu.Unlock()
	if m == nil || m.dev == nil {
		return fmt.Errorf("%w: %q", ErrMissing, name)
	}
	return m.dev.SetModeration(queue, engine)
}

func (m *member) set(state string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state, m.err = state, err
}

func (m *member) snapshot() netdev.DeviceSnapshot {
	m.mu.Lock()
	state, err := m.state, m.err
	m.mu.Unlock()
	var s netdev.DeviceSnapshot
	if m.dev != nil {
		s = m.dev.Snapshot()
	} else {
		s = netdev.FailedSnapshot(m.def.Name, m.def.Port)
	}
	if state != netdev.StateServing {
		s.State, s.Error = state, ""
		if err != nil {
			s.Error = err.Error()
		}
	}
	return s
}
