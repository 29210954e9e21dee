package vhostuser

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// openFDs counts this process's descriptors.
func openFDs(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// pair makes a connected pair of sockets.
func pair(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1]
}

// script is a session of the fake with a front-end at the other end.
type script struct {
	*Frontend
	t    testing.TB
	b    *fake
	done chan error
	c    Counters
}

// begin starts a session. When the test ends it has ended too, has done nothing
// that it must not, and has left no descriptor.
func begin(t testing.TB) *script {
	t.Helper()
	before := openFDs(t)
	near, far := pair(t)
	if err := near.SetDeadline(time.Now().Add(hangs)); err != nil {
		t.Fatal(err)
	}
	s := &script{Frontend: NewFrontend(near), t: t, b: newFake(), done: make(chan error, 1)}
	// A context that ends closes the socket at a time of its own.
	ctx := context.WithoutCancel(t.Context())
	go func() { s.done <- Serve(ctx, far, s.b, Options{Counters: &s.c}) }()
	t.Cleanup(func() {
		_ = s.Close()
		select {
		case <-s.done:
		case <-time.After(hangs):
			t.Error("the session does not end")
			return
		}
		if bad := s.b.bad; len(bad) > 0 {
			t.Errorf("the session did what it must not: %q", bad)
		}
		if after := openFDs(t); after != before {
			t.Errorf("%d descriptors, had %d", after, before)
		}
	})
	return s
}

// end waits for the session's end and returns its error.
func (s *script) end() error {
	s.t.Helper()
	err := <-s.done
	s.done <- err
	return err
}

func (s *script) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// hello negotiates everything and shares one region.
func (s *script) hello() {
	s.t.Helper()
	s.must(s.SetOwner())
	s.must(s.SetProtocolFeatures(protoOffer))
	s.must(s.SetFeatures(offer | virtio.FeatureProtocolFeatures))
	s.must(s.SetMemTable([]guestmem.Region{region0}, []int{s.file(memSize)}))
	s.b.take()
}

const (
	memSize = 1 << 20
	uva     = 0x7F55_0000_0000
)

var region0 = guestmem.Region{Size: memSize, UserAddr: uva}

// file makes a memory file; the session has no claim on it, so it is closed when
// the test ends, before descriptors are counted.
func (s *script) file(size int64) int {
	s.t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		s.t.Fatal(err)
	}
	return fd
}

func (s *script) event() int {
	s.t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// start configures and starts ring i of n descriptors; it is not enabled.
func (s *script) start(i, n int) {
	s.t.Helper()
	s.must(s.SetVringNum(i, n))
	s.must(s.SetVringBase(i, 0))
	s.must(s.addr(i))
	s.must(s.SetVringKick(i, s.event()))
}

func (s *script) addr(i int) error {
	at := uint64(uva + i*0x10000)
	return s.SetVringAddr(i, at, at+0x4000, at+0x8000)
}

// tell sends a message as it stands.
func (s *script) tell(r Request, flags uint32, payload []byte, fds ...int) {
	s.t.Helper()
	s.must(s.SendRaw(Header{r, flags, uint32(len(payload))}, payload, fds))
}

// code sends a message that wants to be confirmed and returns the answer.
func (s *script) code(r Request, payload []byte, fds ...int) uint64 {
	s.t.Helper()
	s.tell(r, FlagVersion|FlagNeedReply, payload, fds...)
	b := s.reply(r)
	if len(b) != 8 {
		s.t.Fatalf("%s: confirmation of %d bytes", r, len(b))
	}
	return ne.Uint64(b)
}

// reply reads a reply to r.
func (s *script) reply(r Request) []byte {
	s.t.Helper()
	h, b, fds, err := s.RecvRaw(time.Now().Add(hangs))
	if err != nil {
		s.t.Fatalf("%s: %v", r, err)
	}
	if h.Request != r || h.Flags != FlagVersion|FlagReply || len(fds) != 0 {
		s.t.Fatalf("%s: reply %+v with %d descriptors", r, h, len(fds))
	}
	return b
}

// inStep expects the next reply to be to the next question.
func (s *script) inStep() {
	s.t.Helper()
	if n, err := s.GetQueueNum(); err != nil || n != 2 {
		s.t.Fatalf("out of step: %d, %v", n, err)
	}
}

func (s *script) refused(r Request, payload []byte, fds ...int) {
	s.t.Helper()
	if s.code(r, payload, fds...) == 0 {
		s.t.Errorf("%s: not refused: % x", r, payload)
	}
}

func (s *script) accepted(r Request, payload []byte, fds ...int) {
	s.t.Helper()
	if s.code(r, payload, fds...) != 0 {
		s.t.Errorf("%s: refused: % x", r, payload)
	}
}

// calls expects the back-end to have been told exactly this since.
func (s *script) calls(want ...string) {
	s.t.Helper()
	if got := s.b.take(); !slices.Equal(got, want) {
		s.t.Errorf("the back-end was told\n%q, want\n%q", got, want)
	}
}

func nacked(err error) bool {
	var n *NackError
	return errors.As(err, &n)
}

func u32s(vs ...uint32) (b []byte) {
	for _, v := range vs {
		b = ne.AppendUint32(b, v)
	}
	return b
}

func table(n uint32, regions ...guestmem.Region) []byte {
	b := u32s(n, 0)
	for _, r := range regions {
		b = appendRegion(b, r)
	}
	return b
}
