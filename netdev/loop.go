package netdev

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// epoch is the zero of the monotonic time that workers and moderators use.
// time.Since on a fixed base is about half the price of time.Now.
var epoch = time.Now()

// nanotime returns nanoseconds on the monotonic clock since the process started.
func nanotime() int64 { return int64(time.Since(epoch)) }

// source says where an event comes from: it is what a loop keeps in the epoll data
// word. The slot is that of one of several workers that share a loop.
type source struct{ tag, slot int32 }

// own marks sources that belong to the loop itself.
const own = -1

// Tags of the event sources of a loop.
const (
	tagMail int32 = iota
	tagTimer
	tagRXKick
	tagTXKick
	tagPort
	tagControlKick
)

// loop is the event set of a goroutine: a mailbox, a timer and the file descriptors
// of rings and ports. All sources are edge triggered, so none has to be read to be
// quiet: a front-end's eventfd is never read, and cannot block the
// goroutine however the front-end sets its flags.
//
// Its goroutine owns it. Only post and enqueue may be called by others.
type loop struct {
	ep, mailFD, timerFD int
	// armed is when the timer is due, in nanotime; 0 when it is not set.
	armed  int64
	events [32]unix.EpollEvent

	// mail is true when letters is not empty; the goroutine looks at it once per
	// round without taking mu.
	mail atomic.Bool
	mu   sync.Mutex
	// letters and closed are guarded by mu.
	letters []letter
	closed  bool
}

type letter struct {
	do   func()
	done chan struct{}
}

var errStopped = errors.New("netdev: worker has ended")

func newLoop() (*loop, error) {
	l := &loop{ep: -1, mailFD: -1, timerFD: -1}
	var err error
	if l.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("netdev: epoll: %w", err)
	}
	if l.mailFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		l.close()
		return nil, fmt.Errorf("netdev: mailbox eventfd: %w", err)
	}
	if l.timerFD, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		l.close()
		return nil, fmt.Errorf("netdev: timerfd: %w", err)
	}
	err = errors.Join(l.add(l.mailFD, source{tagMail, own}, unix.EPOLLIN), l.add(l.timerFD, source{tagTimer, own}, unix.EPOLLIN))
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// add watches fd. It fails with EPERM on a descriptor that cannot be polled,
// a regular file sent as an eventfd for example.
func (l *loop) add(fd int, s source, events uint32) error {
	ev := unix.EpollEvent{Events: events | unix.EPOLLET, Fd: s.tag, Pad: s.slot}
	if err := unix.EpollCtl(l.ep, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("netdev: watching fd: %w", err)
	}
	return nil
}

func (l *loop) remove(fd int) {
	// A descriptor that was never added is not an error worth a word.
	_ = unix.EpollCtl(l.ep, unix.EPOLL_CTL_DEL, fd, nil)
}

// wait sleeps until a source is ready or timeout milliseconds have passed (-1:
// for ever) and calls ready with each.
func (l *loop) wait(timeout int, ready func(s source, events uint32)) {
	n, err := unix.EpollWait(l.ep, l.events[:], timeout)
	if err != nil {
		return // EINTR: the caller looks at everything again anyway.
	}
	for i := range l.events[:n] {
		ev := &l.events[i]
		switch ev.Fd {
		case tagMail:
			var b [8]byte
			_, _ = unix.Read(l.mailFD, b[:])
		case tagTimer:
			l.armed = 0
		}
		ready(source{ev.Fd, ev.Pad}, ev.Events)
	}
}

// arm makes wait return at the given nanotime at the latest. An earlier timer
// that is already set suffices and is left alone, since setting one costs more
// than ten microseconds on a virtual machine.
func (l *loop) arm(at, now int64) {
	if l.armed != 0 && l.armed <= at {
		return
	}
	d := max(at-now, 1)
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(d)}
	if unix.TimerfdSettime(l.timerFD, 0, &spec, nil) == nil {
		l.armed = at
	}
}

// post runs f on the goroutine between two rounds and returns when it has run. It
// fails only when the goroutine has ended.
func (l *loop) post(f func()) error {
	done, err := l.enqueue(f)
	if err == nil {
		<-done
	}
	return err
}

// enqueue is post that does not wait: done is closed when f has run.
func (l *loop) enqueue(f func()) (done <-chan struct{}, err error) {
	m := letter{f, make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errStopped
	}
	l.letters = append(l.letters, m)
	l.mail.Store(true)
	l.wake()
	return m.done, nil
}

func (l *loop) wake() {
	b := [8]byte{1}
	// EAGAIN means that the counter is not zero: the goroutine will wake anyway.
	_, _ = unix.Write(l.mailFD, b[:])
}

// deliver runs what has been posted.
func (l *loop) deliver() {
	l.mu.Lock()
	todo := l.letters
	l.letters = nil
	l.mail.Store(false)
	l.mu.Unlock()
	for _, m := range todo {
		m.do()
		close(m.done)
	}
}

// shut refuses further letters and runs those that are left.
func (l *loop) shut() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.deliver()
	l.close()
}

func (l *loop) close() {
	for _, fd := range []int{l.ep, l.mailFD, l.timerFD} {
		closeFD(fd)
	}
}

func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}
