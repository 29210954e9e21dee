package tap

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

func TestSetActive(t *testing.T) {
	namespace(t)
	create(t, "vn0", CreateOptions{})
	p := open(t, "vn0", Options{Queues: 3})
	configure(t, p, 12, 0)
	check := func(on, off int) {
		t.Helper()
		if l := linkOf(t, "vn0"); l.Queues != on || l.DisabledQueues != off {
			t.Errorf("%d queues are attached and %d detached, want %d and %d", l.Queues, l.DisabledQueues, on, off)
		}
	}
	check(3, 0)
	for i := range 3 {
		for range 2 {
			if err := p.SetActive(i, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	check(0, 3)
	h := packet(t, "vn0", etherType)
	h.send(frame(60, 1)) // nobody is there
	q := polled(p, 1)
	empty(t, q)
	if err := q.Send([][]byte{withHeader(12, frame(60, 1))}); err != nil {
		t.Errorf("Send on a detached queue: %v", err)
	}
	if got := h.recv(); binary.BigEndian.Uint32(got[14:]) != 1 {
		t.Errorf("a detached queue has sent % x", got)
	}
	if err := p.SetActive(1, true); err != nil {
		t.Fatal(err)
	}
	check(1, 2)
	empty(t, q)
	h.send(frame(60, 2))
	if got := receive(t, q); binary.BigEndian.Uint32(got[26:]) != 2 {
		t.Errorf("another frame than the one sent: % x", got)
	}
	h.send(frame(60, 3)) // goes with the queue
	if err := errors.Join(p.SetActive(1, false), p.SetActive(1, true)); err != nil {
		t.Fatal(err)
	}
	empty(t, q)
	for _, i := range []int{-1, 3} {
		if p.SetActive(i, true) == nil {
			t.Errorf("there is a queue %d", i)
		}
	}

	single := open(t, "vn1", Options{CreateIfMissing: true})
	if err := errors.Join(single.SetActive(0, false), single.SetActive(0, true)); err != nil {
		t.Error(err)
	}
}

// Queues come and go while every one of them has a worker that receives and the
// host sends: no error but the two that a worker lives with, and traffic goes on.
func TestManyQueuesUnderTraffic(t *testing.T) {
	namespace(t)
	const queues, rounds = 16, 40
	create(t, "vn0", CreateOptions{})
	p := open(t, "vn0", Options{Queues: queues})
	configure(t, p, 12, 0)
	if l := linkOf(t, "vn0"); l.Queues != queues {
		t.Fatalf("%d queues are attached", l.Queues)
	}

	var stop atomic.Bool
	var got [queues]atomic.Int64
	var wg sync.WaitGroup
	for i := range queues {
		wg.Go(func() {
			q := polled(p, i)
			in, out := [][]byte{make([]byte, 12), make([]byte, 2000)}, [][]byte{withHeader(12, frame(60, uint32(i)))}
			for !stop.Load() {
				switch n, err := q.Recv(in); {
				case err == nil && n == 72 && in[1][12] == etherType>>8:
					got[i].Add(1)
				case errors.Is(err, port.ErrWouldBlock):
					// Bounded, since a detached queue is never readable.
					unix.Poll([]unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}, 1)
				default:
					t.Errorf("queue %d: %d bytes, %v", i, n, err)
					return
				}
				if err := q.Send(out); err != nil && !errors.Is(err, port.ErrDropped) && !errors.Is(err, port.ErrWouldBlock) {
					t.Errorf("queue %d: %v", i, err)
					return
				}
			}
		})
	}
	h := packet(t, "vn0", 0) // sends only
	addr := &unix.SockaddrLinklayer{Ifindex: linkOf(t, "vn0").Index, Protocol: htons(etherType)}
	wg.Go(func() {
		// Different protocols spread over the queues: the kernel hashes flows.
		f := frame(60, 0)
		for seq := uint32(0); !stop.Load(); seq++ {
			binary.BigEndian.PutUint32(f[6:], 0x02000000|seq%251)
			if err := unix.Sendto(h.fd, f, 0, addr); err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EAGAIN) {
				t.Error(err)
				return
			}
		}
	})

	for round := range rounds {
		active := 1 + (round*7)%queues
		for i := range queues {
			if err := p.SetActive(i, i < active); err != nil {
				t.Error(err)
			}
		}
		if round%8 == 3 {
			if err := p.Configure(12, p.Offloads()*virtio.Features(round>>3&1)); err != nil {
				t.Error(err)
			}
		}
	}
	for i := range queues {
		if err := p.SetActive(i, i == queues-1); err != nil {
			t.Error(err)
		}
	}
	// One queue is left: all that is sent goes through it.
	before := got[queues-1].Load()
	for end := time.Now().Add(patience); got[queues-1].Load() < before+100; runtime.Gosched() {
		if time.Now().After(end) {
			t.Error("the only queue that is left gets nothing")
			break
		}
	}
	stop.Store(true)
	wg.Wait()
}
