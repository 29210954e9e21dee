package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// hangs bounds waits; it is no measurement.
const hangs = 20 * time.Second

const (
	offer      = virtio.FeatureVersion1 | virtio.FeatureMrgRxBuf | virtio.FeatureCtrlVQ | virtio.FeatureEventIdx
	protoOffer = ProtocolMQ | ProtocolReplyAck | ProtocolBackendReq | ProtocolConfig | ProtocolConfigureMemSlots |
		ProtocolStatus | ProtocolResetDevice | ProtocolMTU | ProtocolRARP
	fakeRings = 5
)

var errFake = errors.New("the fake says no")

// fake is a back-end that records what it is told and checks the order.
type fake struct {
	mu    sync.Mutex
	calls []string
	// bad are calls that a session must not make.
	bad []string
	// fail has the calls that fail, by name.
	fail map[string]bool
	// base is what StopRing answers.
	base      uint32
	features  virtio.Features
	mem       *guestmem.Map
	rings     [fakeRings]fakeRing
	status    uint8
	channel   *BackendChannel
	connected bool
	sessions  int
}

type fakeRing struct {
	started, enabled bool
	config           RingConfig
	kick, call, err  int
}

func newFake() *fake {
	f := &fake{fail: make(map[string]bool), mem: guestmem.Empty()}
	for i := range f.rings {
		f.rings[i] = fakeRing{kick: -1, call: -1, err: -1}
	}
	return f
}

// told records a call and says whether it fails. The caller holds mu.
func (f *fake) told(name, format string, args ...any) error {
	f.calls = append(f.calls, strings.TrimSpace(name+" "+fmt.Sprintf(format, args...)))
	if !f.connected {
		f.wrong("%s without a session", name)
	}
	if f.fail[name] {
		return errFake
	}
	return nil
}

func (f *fake) wrong(format string, args ...any) { f.bad = append(f.bad, fmt.Sprintf(format, args...)) }

// take returns the calls since the last time.
func (f *fake) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

func (f *fake) lock() func() { f.mu.Lock(); return f.mu.Unlock }

func (f *fake) failing(name string, on bool) { defer f.lock()(); f.fail[name] = on }

// stopAt sets what StopRing answers.
func (f *fake) stopAt(base uint32) { defer f.lock()(); f.base = base }

func (f *fake) Features() virtio.Features          { return offer }
func (f *fake) ProtocolFeatures() ProtocolFeatures { return protoOffer }
func (f *fake) NumRings() int                      { return fakeRings }
func (f *fake) QueueNum() uint64                   { return 2 }

func (f *fake) Connected() {
	defer f.lock()()
	if f.connected {
		f.wrong("Connected twice")
	}
	f.connected = true
	f.sessions++
}

func (f *fake) SetBackendChannel(ch *BackendChannel) {
	defer f.lock()()
	_ = f.told("SetBackendChannel", "%v", ch != nil)
	f.channel = ch
}

func (f *fake) SetFeatures(v virtio.Features) error {
	defer f.lock()()
	err := f.told("SetFeatures", "%#x", uint64(v))
	if v&^offer != 0 {
		f.wrong("SetFeatures %v", v)
	}
	for i, r := range f.rings {
		if r.started {
			f.wrong("SetFeatures with ring %d started", i)
		}
	}
	if err == nil {
		f.features = v
	}
	return err
}

func (f *fake) SetMemory(m *guestmem.Map) error {
	defer f.lock()()
	if err := f.told("SetMemory", "%d", len(m.Regions())); err != nil {
		return err
	}
	f.mem.Release()
	f.mem = m.Retain()
	return nil
}

func (f *fake) StartRing(i int, c RingConfig, kick int) error {
	defer f.lock()()
	err := f.told("StartRing", "%d size %d base %d", i, c.Size, c.Base)
	r := &f.rings[i]
	if r.started {
		f.wrong("StartRing %d twice", i)
	}
	if err != nil {
		closeFDs([]int{kick})
		return err
	}
	r.started, r.config, r.kick = true, c, kick
	return nil
}

func (f *fake) StopRing(i int) (uint32, error) {
	defer f.lock()()
	err := f.told("StopRing", "%d", i)
	r := &f.rings[i]
	if !r.started {
		f.wrong("StopRing %d of one that is stopped", i)
	}
	closeFDs([]int{r.kick})
	r.started, r.kick = false, -1
	return f.base, err
}

func (f *fake) EnableRing(i int, on bool) error {
	defer f.lock()()
	err := f.told("EnableRing", "%d %v", i, on)
	f.rings[i].enabled = on
	return err
}

func (f *fake) SetRingAddr(i int, c RingConfig) error {
	defer f.lock()()
	if !f.rings[i].started {
		f.wrong("SetRingAddr %d of one that is stopped", i)
	}
	return f.told("SetRingAddr", "%d %#x", i, c.Desc)
}

// swap owns the descriptor also on failure.
func (f *fake) swap(name string, i int, old *int, fd int) error {
	err := f.told(name, "%d %v", i, fd >= 0)
	if err != nil {
		closeFDs([]int{fd})
		return err
	}
	closeFDs([]int{*old})
	*old = fd
	return nil
}

func (f *fake) SetRingKick(i, fd int) error {
	defer f.lock()()
	if !f.rings[i].started {
		f.wrong("SetRingKick %d of one that is stopped", i)
	}
	return f.swap("SetRingKick", i, &f.rings[i].kick, fd)
}

func (f *fake) SetRingCall(i, fd int) error {
	defer f.lock()()
	return f.swap("SetRingCall", i, &f.rings[i].call, fd)
}

func (f *fake) SetRingErr(i, fd int) error {
	defer f.lock()()
	return f.swap("SetRingErr", i, &f.rings[i].err, fd)
}

func (f *fake) GetConfig(off, n uint32) ([]byte, error) {
	defer f.lock()()
	if err := f.told("GetConfig", "%d %d", off, n); err != nil {
		return nil, err
	}
	if uint64(off)+uint64(n) > 256 {
		return nil, errFake
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(off) + byte(i)
	}
	return b, nil
}

func (f *fake) SetConfig(off, flags uint32, data []byte) error {
	defer f.lock()()
	return f.told("SetConfig", "%d %d % x", off, flags, data)
}

func (f *fake) SetStatus(s uint8) error {
	defer f.lock()()
	f.status = s
	return f.told("SetStatus", "%d", s)
}

func (f *fake) Status() uint8 { defer f.lock()(); return f.status }

func (f *fake) SetMTU(mtu uint64) error {
	defer f.lock()()
	return f.told("SetMTU", "%d", mtu)
}

func (f *fake) SendRARP(mac [6]byte) error {
	defer f.lock()()
	return f.told("SendRARP", "%x", mac)
}

func (f *fake) ResetDevice() error {
	defer f.lock()()
	err := f.told("ResetDevice", "")
	for i := range f.rings {
		r := &f.rings[i]
		closeFDs([]int{r.kick})
		r.started, r.enabled, r.kick = false, false, -1
	}
	return err
}

func (f *fake) Disconnected() {
	defer f.lock()()
	if !f.connected {
		f.wrong("Disconnected without a session")
	}
	for i := range f.rings {
		r := &f.rings[i]
		if r.started {
			f.wrong("ring %d is left started", i)
		}
		closeFDs([]int{r.kick, r.call, r.err})
		f.rings[i] = fakeRing{kick: -1, call: -1, err: -1}
	}
	if f.channel != nil {
		f.wrong("the channel is left")
	}
	f.mem.Release()
	f.mem = guestmem.Empty()
	f.connected = false
}

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
