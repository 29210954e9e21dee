package netdev_test

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/internal/unixsock"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long something that must happen may take on a busy machine.
const patience = 20 * time.Second

// fakePort is a port whose other side is the test.
type fakePort struct {
	queues []*fakeQueue

	mu     sync.Mutex
	hdrLen int
	guest  virtio.Features
	resets int
	active map[int]bool
}

type fakeQueue struct {
	fd int

	mu    sync.Mutex
	in    [][]byte // frames for the device, header first
	out   [][]byte // frames from the device, header first
	block bool     // Send would block
}

var (
	_ port.Port           = (*fakePort)(nil)
	_ port.Configurer     = (*fakePort)(nil)
	_ port.QueueActivator = (*fakePort)(nil)
)

func newFakePort(t *testing.T, queues int) *fakePort {
	p := &fakePort{active: map[int]bool{}}
	for range queues {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		p.queues = append(p.queues, &fakeQueue{fd: fd})
	}
	return p
}

func (p *fakePort) Kind() string               { return "fake" }
func (p *fakePort) String() string             { return "fake" }
func (p *fakePort) Queues() int                { return len(p.queues) }
func (p *fakePort) Queue(i int) port.PortQueue { return p.queues[i] }

func (p *fakePort) Offloads() virtio.Features {
	return virtio.FeatureCSum | virtio.FeatureHostTSO4 | virtio.FeatureGuestCSum | virtio.FeatureGuestTSO4
}

func (p *fakePort) Close() error {
	for _, q := range p.queues {
		_ = unix.Close(q.fd)
	}
	return nil
}

func (p *fakePort) Configure(hdrLen int, guest virtio.Features) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hdrLen, p.guest = hdrLen, guest
	return nil
}

func (p *fakePort) Reset() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.guest, p.resets = 0, p.resets+1
	return nil
}

func (p *fakePort) SetActive(i int, on bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active[i] = on
	return nil
}

func (p *fakePort) isActive(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.active[i]
}

func (q *fakeQueue) FD() int { return q.fd }

func (q *fakeQueue) Recv(bufs [][]byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.in) == 0 {
		return 0, port.ErrWouldBlock
	}
	f := q.in[0]
	q.in = q.in[1:]
	n := len(f)
	for _, b := range bufs {
		f = f[copy(b, f):]
	}
	if len(f) > 0 {
		return n, port.ErrTruncated
	}
	return n, nil
}

func (q *fakeQueue) Send(bufs [][]byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.block {
		return port.ErrWouldBlock
	}
	var f []byte
	for _, b := range bufs {
		f = append(f, b...)
	}
	q.out = append(q.out, f)
	return nil
}

// inject makes frames arrive, each behind a header.
func (q *fakeQueue) inject(frames ...[]byte) {
	q.mu.Lock()
	q.in = append(q.in, frames...)
	q.mu.Unlock()
	q.poke()
}

func (q *fakeQueue) poke() {
	b := [8]byte{1}
	_, _ = unix.Write(q.fd, b[:])
}

func (q *fakeQueue) sent() [][]byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.out
}

func (q *fakeQueue) setBlock(on bool) {
	q.mu.Lock()
	q.block = on
	q.mu.Unlock()
	q.poke() // an eventfd is always writable; the poke makes the edge
}

// testFrame is a frame of n bytes behind a plain header, with its number in it.
func testFrame(number uint32, n int) []byte {
	b := make([]byte, virtio.NetHeaderLen+n)
	f := b[virtio.NetHeaderLen:]
	copy(f, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5})
	binary.BigEndian.PutUint32(f[14:], number)
	for i := 18; i < n; i++ {
		f[i] = byte(i)
	}
	return b
}

// rig is a device on a fake port with a driver in front of it.
type rig struct {
	t    *testing.T
	dev  *netdev.Device
	port *fakePort
	d    *driver.Driver
	stop func()
}

func newDevice(t *testing.T, cfg netdev.Config, p port.Port) *netdev.Device {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "test"
	}
	dev, err := netdev.New(cfg, p)
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// connect serves dev on one end of a socket pair and returns the other end, and
// a function that waits for the session's end once that is closed.
func connect(t *testing.T, dev *netdev.Device) (*net.UnixConn, func()) {
	t.Helper()
	front, back, err := unixsock.Pair()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- vhostuser.Serve(context.Background(), back, dev, vhostuser.Options{Counters: dev.Counters()})
	}()
	return front, func() {
		if err := <-done; err != nil {
			t.Errorf("session: %v", err)
		}
	}
}

func newRig(t *testing.T, cfg netdev.Config, dcfg driver.Config) *rig {
	t.Helper()
	pairs := max(cfg.QueuePairs, 1)
	p := newFakePort(t, pairs)
	r := &rig{t: t, port: p, dev: newDevice(t, cfg, p)}
	r.drive(dcfg)
	t.Cleanup(func() {
		r.stop()
		if err := r.dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// drive connects a driver; the one before must have stopped.
func (r *rig) drive(cfg driver.Config) {
	r.t.Helper()
	c, ended := connect(r.t, r.dev)
	d, err := driver.New(c, format(cfg))
	if err != nil {
		r.t.Fatal(err)
	}
	r.d = d
	once := sync.OnceFunc(func() {
		if err := d.Close(); err != nil {
			r.t.Errorf("driver: %v", err)
		}
		ended()
	})
	r.stop = once
}

// queue returns the snapshot of a virtqueue.
func (r *rig) queue(i int) netdev.QueueSnapshot { return r.dev.Snapshot().Queues[i] }

// until waits for a condition on the device.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("never: %s; device: %+v", what, r.dev.Snapshot())
		}
	}
}

// receive waits until the driver has n frames from pair and returns copies.
func (r *rig) receive(pair, n int) [][]byte {
	r.t.Helper()
	var got [][]byte
	packets := make([]driver.Packet, 64)
	for end := time.Now().Add(patience); len(got) < n; {
		k := r.d.Pair(pair).RX.Receive(packets)
		for i := range k {
			got = append(got, append([]byte(nil), packets[i].Frame()...))
		}
		if k == 0 {
			if time.Now().After(end) {
				r.t.Fatalf("%d frames of %d", len(got), n)
			}
			if _, err := r.d.Pair(pair).RX.Wait(10 * time.Millisecond); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	return got
}
