package guestmem

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
)

// live is what is mapped, so that a fault in guest memory can be told from one
// that is a bug of this program. It is looked at only when there was a fault.
var live registry

type registry struct {
	mu  sync.Mutex
	set map[*mapping]struct{}
}

func (r *registry) add(m *mapping) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.set == nil {
		r.set = make(map[*mapping]struct{})
	}
	r.set[m] = struct{}{}
}

func (r *registry) remove(m *mapping) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.set, m)
}

func (r *registry) holds(addr uintptr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for m := range r.set {
		if m.holds(addr) {
			return true
		}
	}
	return false
}

// CatchFaults runs fn and returns an error that wraps [ErrFault] if it touched
// guest memory whose file has shrunk, or [ErrLog] if it wrote where the dirty log has
// no bit. fn is abandoned at that point, so it must
// hold no lock then. Other panics pass, and so does a fault outside of all
// mappings. It is meant to be called once per burst; it does not allocate as
// long as nothing goes wrong.
func CatchFaults(fn func()) (err error) {
	old := debug.SetPanicOnFault(true)
	defer caught(old, &err)
	fn()
	return nil
}

func caught(old bool, err *error) {
	debug.SetPanicOnFault(old)
	p := recover()
	if p == nil {
		return
	}
	if b, ok := p.(beyondLog); ok {
		*err = fmt.Errorf("%w: nothing there for guest address %#x", ErrLog, b.gpa)
		return
	}
	// That such a panic has an Addr is documented with SetPanicOnFault.
	if f, ok := p.(interface {
		runtime.Error
		Addr() uintptr
	}); ok && live.holds(f.Addr()) {
		*err = fmt.Errorf("%w at %#x", ErrFault, f.Addr())
		return
	}
	panic(p)
}
