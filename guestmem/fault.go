package guestmem

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// CatchFaults runs fn and returns an error that wraps [ErrFault] if it touched
// memory that is mapped no more or whose file has shrunk. fn is abandoned at that
// point. Other panics pass. It is meant to be called once per burst; it does not
// allocate as long as nothing goes wrong.
func CatchFaults(fn func()) (err error) {
	old := debug.SetPanicOnFault(true)
	defer caught(old, &err)
	fn()
	return nil
}

func caught(old bool, err *error) {
	debug.SetPanicOnFault(old)
	switch p := recover().(type) {
	case nil:
	case interface {
		runtime.Error
		Addr() uintptr
	}:
		*err = fmt.Errorf("%w at %#x", ErrFault, p.Addr())
	default:
		panic(p)
	}
}
