package driver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/internal/unixsock"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/port/builtin"
	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var mac = [6]byte{2, 0, 0, 0, 0, 1}

// socketPair returns the two ends of a connection.
func socketPair(t *testing.T) (front, back *net.UnixConn) {
	t.Helper()
	front, back, err := unixsock.Pair()
	if err != nil {
		t.Fatal(err)
	}
	return front, back
}

// serve runs an echo device on a connection. The returned function waits for its
// end.
func serve(ctx context.Context, t *testing.T, back *net.UnixConn, c netdev.Config) (dev *netdev.Device, wait func() error) {
	t.Helper()
	p, err := builtin.Echo(max(c.QueuePairs, 1))
	if err != nil {
		t.Fatal(err)
	}
	c.Name, c.MAC, c.MTU = "test", mac, 1500
	dev, err = netdev.New(c, p)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- vhostuser.Serve(ctx, back, dev, vhostuser.Options{}) }()
	return dev, func() error {
		err := <-served
		return errors.Join(err, dev.Close(), p.Close())
	}
}

// start connects a driver to a device; both end with the test, without an error.
func start(t *testing.T, nc netdev.Config, dc driver.Config) *driver.Driver {
	t.Helper()
	front, back := socketPair(t)
	// Not the test's own context, which ends before the cleanup.
	_, wait := serve(context.Background(), t, back, nc)
	d, err := driver.New(front, dc)
	if err != nil {
		t.Fatal(errors.Join(err, wait()))
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Error("second Close:", err)
		}
		if err := wait(); err != nil {
			t.Error("device:", err)
		}
	})
	return d
}

// frame is an Ethernet frame of n bytes, and its echo.
func frame(n, seed int) (sent, want []byte) {
	sent = make([]byte, n)
	for i := range sent {
		sent[i] = byte(i*3 + seed*31 + i>>8)
	}
	copy(sent, []byte{2, 0, 0, 0, 0, 7})
	copy(sent[6:], mac[:])
	want = bytes.Clone(sent)
	copy(want, sent[6:12])
	copy(want[6:], sent[:6])
	return sent, want
}

func TestEcho(t *testing.T) {
	without := func(f virtio.Features) driver.Config { return driver.Config{Without: f} }
	tests := map[string]struct {
		pairs, max int
		cfg        driver.Config
	}{
		"default":                    {1, 2034, driver.Config{}},
		"device has more pairs":      {4, 2034, driver.Config{}},
		"four pairs":                 {4, 2034, driver.Config{QueuePairs: 4}},
		"polling":                    {1, 2034, driver.Config{Polling: true}},
		"smallest ring":              {1, 2034, driver.Config{QueueSize: 2}},
		"mergeable buffers":          {1, 9000, driver.Config{RXBufferSize: 256, TXBufferSize: 9100}},
		"largest frames":             {1, 65549, driver.Config{TXBufferSize: 66000}},
		"several memory regions":     {2, 2034, driver.Config{QueuePairs: 2, MemRegions: 8}},
		"chains":                     {1, 2034, driver.Config{TXSegments: 4}},
		"indirect":                   {1, 2034, driver.Config{TXSegments: 7, Indirect: true}},
		"no event index":             {1, 2034, without(virtio.FeatureEventIdx)},
		"no mergeable buffers":       {1, 2034, without(virtio.FeatureMrgRxBuf)},
		"no control queue":           {1, 2034, without(virtio.FeatureCtrlVQ)},
		"legacy, header of 10 bytes": {1, 2034, without(virtio.FeatureVersion1 | virtio.FeatureMrgRxBuf)},
	}
	for name, tt := range tests {
		for _, packed := range []bool{false, true} {
			if packed && tt.cfg.Without.Has(virtio.FeatureVersion1) {
				continue // no such thing
			}
			tt.cfg.Packed = packed
			t.Run(fmt.Sprintf("%s, packed %t", name, packed), func(t *testing.T) { echoAll(t, tt.pairs, tt.max, tt.cfg) })
		}
	}
	// Sizes that only packed rings can have, and that are not more than a chain.
	for _, size := range []int{1, 3, 7, 200, 32768} {
		t.Run(fmt.Sprintf("packed, size %d", size), func(t *testing.T) {
			echoAll(t, 1, 1514, driver.Config{Packed: true, QueueSize: size, TXSegments: min(size, 3)})
		})
	}
}

func echoAll(t *testing.T, pairs, longest int, cfg driver.Config) {
	t.Helper()
	d := start(t, netdev.Config{QueuePairs: pairs}, cfg)
	if d.Features().Has(virtio.FeatureRingPacked) != cfg.Packed {
		t.Fatalf("features %s", d.Features())
	}
	for i := range d.QueuePairs() {
		echo(t, d, i, longest)
	}
	if d.Broken() {
		t.Error("the device broke the rules")
	}
}

// TestPause: rings go on where they were, over the end of a ring too, with both
// positions of a packed one.
func TestPause(t *testing.T) {
	for _, cfg := range []driver.Config{{QueueSize: 16}, {QueueSize: 7, Packed: true, TXSegments: 3}} {
		d := start(t, netdev.Config{}, cfg)
		for range 5 {
			echo(t, d, 0, 1514)
			if err := d.SetRXMode(driver.Promiscuous, true); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(d.Pause(), d.Resume()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// echo sends frames of all kinds of lengths on one pair and checks what returns.
func echo(t *testing.T, d *driver.Driver, pair, longest int) {
	t.Helper()
	p := d.Pair(pair)
	packets := make([]driver.Packet, 8)
	lengths := []int{14, 60, 61, 64, 1500, 1514, longest, 60, 1514}
	// Enough to go round the ring a few times.
	for i := range 600 {
		n := lengths[i%len(lengths)]
		if i > 100 {
			n = lengths[i%4]
		}
		sent, want := frame(n, i)
		if err := p.TX.Send(sent); err != nil {
			t.Fatalf("pair %d, frame %d: %v", pair, i, err)
		}
		p.TX.Flush()
		for p.RX.Receive(packets) == 0 {
			if ready, err := p.RX.Wait(20 * time.Second); !ready || err != nil {
				t.Fatalf("pair %d, frame %d of %d bytes: ready %v, error %v, counters %+v", pair, i, n, ready, err, p.RX.Counters())
			}
		}
		if got := packets[0].Frame(); !bytes.Equal(got, want) {
			t.Fatalf("pair %d, frame %d: %d bytes %x…, want %d bytes %x…", pair, i, len(got), got[:14], n, want[:14])
		}
		if h := packets[0].Header(); h.Flags != 0 || h.GSOType != 0 {
			t.Fatalf("pair %d, frame %d: header %+v", pair, i, h)
		}
	}
}

func TestDriverSeesTheDevice(t *testing.T) {
	d := start(t, netdev.Config{QueuePairs: 3}, driver.Config{QueuePairs: 2})
	if d.MAC() != mac || d.MTU() != 1500 || d.MaxQueuePairs() != 3 || d.QueuePairs() != 2 {
		t.Errorf("MAC %x, MTU %d, %d of %d pairs", d.MAC(), d.MTU(), d.QueuePairs(), d.MaxQueuePairs())
	}
	if !d.Features().Has(virtio.FeatureVersion1|virtio.FeatureMQ) || d.Features()&^d.Offer() != 0 {
		t.Errorf("features %v of %v", d.Features(), d.Offer())
	}
	if d.Frontend() == nil || d.ProtocolFeatures()&vhostuser.ProtocolReplyAck == 0 {
		t.Errorf("protocol features %v", d.ProtocolFeatures())
	}
}

func TestCoalescingThroughTheControlQueue(t *testing.T) {
	d := start(t, netdev.Config{QueuePairs: 2}, driver.Config{QueuePairs: 2})
	check := func(step string, want [4][2]uint32) {
		t.Helper()
		for vq, w := range want {
			usecs, packets, err := d.VQCoalesce(uint16(vq))
			if err != nil || usecs != w[0] || packets != w[1] {
				t.Errorf("%s: virtqueue %d: %d us, %d packets, %v; want %v", step, vq, usecs, packets, err, w)
			}
		}
	}
	check("start", [4][2]uint32{})
	if err := errors.Join(d.SetRXCoalesce(8, 16), d.SetTXCoalesce(64, 32), d.SetVQCoalesce(2, 100, 50)); err != nil {
		t.Fatal(err)
	}
	check("set", [4][2]uint32{{8, 16}, {64, 32}, {100, 50}, {64, 32}})
	for _, vq := range []uint16{4, 5, 0xffff} {
		if err := d.SetVQCoalesce(vq, 1, 2); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("virtqueue %d: %v, want ErrRefused", vq, err)
		}
	}
}

func TestConfigurationThatDoesNotFit(t *testing.T) {
	for name, tt := range map[string]struct {
		pairs int
		cfg   driver.Config
	}{
		"more pairs than the device has": {2, driver.Config{QueuePairs: 3}},
		"pairs without MQ":               {1, driver.Config{QueuePairs: 2}},
		"queue size":                     {1, driver.Config{QueueSize: 100}},
		"smallest queue size":            {1, driver.Config{QueueSize: 1}},
		"no room for a frame":            {1, driver.Config{TXBufferSize: 12}},
		"receive buffer":                 {1, driver.Config{RXBufferSize: -1}},
		"segments":                       {1, driver.Config{QueueSize: 4, TXSegments: 5}},
		"regions":                        {1, driver.Config{MemRegions: 9}},
		"too many pairs":                 {1, driver.Config{QueuePairs: 128}},
	} {
		t.Run(name, func(t *testing.T) {
			front, back := socketPair(t)
			_, wait := serve(context.Background(), t, back, netdev.Config{QueuePairs: tt.pairs})
			if _, err := driver.New(front, tt.cfg); !errors.Is(err, driver.ErrConfig) {
				t.Errorf("%v, want ErrConfig", err)
			}
			if err := wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestBothSidesCountTheSame compares the driver's counters with the device's, in
// the middle of a life in which both sleep and wake each other a lot.
func TestBothSidesCountTheSame(t *testing.T) {
	for _, cfg := range []driver.Config{
		{QueuePairs: 2},
		{QueuePairs: 2, Packed: true},
		{QueuePairs: 2, Packed: true, QueueSize: 100, TXSegments: 3},
	} {
		bothSides(t, cfg)
	}
}

func bothSides(t *testing.T, cfg driver.Config) {
	t.Helper()
	front, back := socketPair(t)
	dev, wait := serve(context.Background(), t, back, netdev.Config{QueuePairs: 2})
	d, err := driver.New(front, cfg)
	if err != nil {
		t.Fatal(errors.Join(err, wait()))
	}
	if err := d.SetVQCoalesce(2, 50, 8); err != nil {
		t.Error(err)
	}
	for pair := range 2 {
		echo(t, d, pair, 1514)
		p := d.Pair(pair)
		if _, err := p.TX.Wait(20 * time.Second); err != nil {
			t.Error(err)
		}
		p.TX.Reclaim()
	}
	// GET_VRING_BASE makes the device announce what it holds back, and nothing
	// after that.
	for i := range 4 {
		if _, err := d.Frontend().GetVringBase(i); err != nil {
			t.Error(err)
		}
	}
	queues := dev.Snapshot().Queues
	for pair := range 2 {
		p := d.Pair(pair)
		p.RX.Settle()
		p.TX.Settle()
		for i, c := range []driver.Counters{p.RX.Counters(), p.TX.Counters()} {
			q := queues[2*pair+i]
			if c.Packets != 600 || q.Packets != c.Packets || q.Bytes != c.Bytes || q.Calls != c.Notifications {
				t.Errorf("virtqueue %d: driver %+v, device %+v", q.Index, c, q)
			}
			if i == 0 && c.Notifications == 0 {
				t.Errorf("virtqueue %d: no notifications", q.Index)
			}
		}
	}
	if err := errors.Join(d.Close(), wait()); err != nil {
		t.Error(err)
	}
}

// TestNothingIsLeftBehind counts descriptors over a few lives.
func TestNothingIsLeftBehind(t *testing.T) {
	live := func() {
		front, back := socketPair(t)
		_, wait := serve(context.Background(), t, back, netdev.Config{QueuePairs: 2})
		d, err := driver.New(front, driver.Config{QueuePairs: 2})
		if err != nil {
			t.Fatal(err)
		}
		echo(t, d, 1, 1514)
		if err := errors.Join(d.Close(), wait()); err != nil {
			t.Fatal(err)
		}
	}
	live()
	before := openFDs(t)
	for range 3 {
		live()
	}
	if after := openFDs(t); after != before {
		t.Errorf("%d file descriptors, %d before", after, before)
	}
}

func openFDs(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// TestBackEndDies: everything is freed and the error is told.
func TestBackEndDies(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	front, back := socketPair(t)
	_, wait := serve(ctx, t, back, netdev.Config{})
	d, err := driver.New(front, driver.Config{})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := wait(); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := d.Close(); err == nil {
		t.Error("the connection is gone and Close does not say so")
	}
}

func TestDial(t *testing.T) {
	path := t.TempDir() + "/sock"
	if _, err := driver.Dial(path, driver.Config{}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("no socket: %v", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		conn, err := l.AcceptUnix()
		if err == nil {
			_, wait := serve(context.Background(), t, conn, netdev.Config{})
			err = wait()
		}
		served <- errors.Join(err, l.Close())
	}()
	d, err := driver.Dial(path, driver.Config{})
	if err != nil {
		t.Fatal(err)
	}
	echo(t, d, 0, 1514)
	if err := errors.Join(d.Close(), <-served); err != nil {
		t.Error(err)
	}
}
