package netdev_test

import (
	"encoding/binary"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/internal/unixsock"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/port/builtin"
	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

// linkPort is a port with a link and an MTU.
type linkPort struct {
	*fakePort
	up      atomic.Bool
	changed func()
	mtu     int
	err     error
}

func (p *linkPort) LinkUp() bool { return p.up.Load() }

func (p *linkPort) WatchLink(changed func()) error {
	p.changed = changed
	return nil
}

func (p *linkPort) SetMTU(mtu int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.mtu = mtu
	}
	return p.err
}

func (p *linkPort) set(up bool) {
	p.up.Store(up)
	p.changed()
}

// TestLink: the status in the configuration space follows the port's link, and a
// front-end that can be told is told of each change.
func TestLink(t *testing.T) {
	p := &linkPort{fakePort: newFakePort(t, 1)}
	r := &rig{t: t, port: p.fakePort, dev: newDevice(t, netdev.Config{}, p)}
	defer func() { r.must(r.dev.Close()) }()
	r.drive(driver.Config{})
	defer r.stop()
	fe := r.d.Frontend()
	is := func(up bool, status byte) {
		t.Helper()
		b, err := fe.GetConfig(6, 2)
		if got := r.dev.Snapshot().LinkUp; err != nil || got != up || b[0] != status {
			t.Errorf("link up %t, status %d, %v; want %t, %d", got, b[0], err, up, status)
		}
	}
	// Without a channel the driver would not learn that it comes up.
	is(false, virtio.NetStatusLinkUp)
	near, far, err := unixsock.Pair()
	r.must(err)
	defer near.Close()
	f, err := far.File()
	r.must(err)
	r.must(fe.SetBackendReqFD(int(f.Fd())))
	r.must(errors.Join(f.Close(), far.Close()))
	is(false, 0)
	for _, up := range []bool{true, false, true} {
		p.set(up)
		p.set(up) // nothing new
		var h [12]byte
		r.must(near.SetReadDeadline(time.Now().Add(patience)))
		if _, err := io.ReadFull(near, h[:]); err != nil || vhostuser.Request(binary.NativeEndian.Uint32(h[:])) != vhostuser.BackendReqConfigChange {
			t.Fatalf("% x, %v", h, err)
		}
		want := byte(0)
		if up {
			want = virtio.NetStatusLinkUp
		}
		is(up, want)
	}
	r.must(near.SetReadDeadline(time.Now()))
	if n, err := near.Read(make([]byte, 12)); err == nil {
		t.Errorf("a message of %d bytes for nothing", n)
	}
}

// TestMTU: NET_SET_MTU is checked, reaches the port and the configuration space, and
// changes nothing if the port cannot.
func TestMTU(t *testing.T) {
	p := &linkPort{fakePort: newFakePort(t, 1)}
	r := &rig{t: t, port: p.fakePort, dev: newDevice(t, netdev.Config{MTU: 1400}, p)}
	defer func() { r.must(r.dev.Close()) }()
	r.drive(driver.Config{})
	defer r.stop()
	is := func(want int) {
		t.Helper()
		b, err := r.d.Frontend().GetConfig(10, 2)
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil || int(binary.LittleEndian.Uint16(b)) != want || p.mtu != want {
			t.Errorf("% x, %v, the port has %d; want %d", b, err, p.mtu, want)
		}
	}
	is(1400)
	r.must(r.d.Frontend().SetMTU(9000))
	is(9000)
	for _, mtu := range []uint64{0, 67, 65536, 1 << 32, 1<<64 - 1} {
		if err := r.d.Frontend().SetMTU(mtu); err == nil {
			t.Errorf("MTU %d is taken", mtu)
		}
	}
	p.mu.Lock()
	p.err = errors.New("no")
	p.mu.Unlock()
	if err := r.d.Frontend().SetMTU(1500); err == nil {
		t.Error("the port's error is lost")
	}
	is(9000)
}

// TestSpeed: speed and duplex are in the configuration space if there is a speed,
// and STANDBY is offered if asked for.
func TestSpeed(t *testing.T) {
	r := newRig(t, netdev.Config{Speed: 25000, With: virtio.FeatureStandby}, driver.Config{})
	if speed, duplex := r.d.Speed(); speed != 25000 || duplex != 1 || r.dev.Snapshot().Speed != 25000 {
		t.Errorf("speed %d, duplex %d", speed, duplex)
	}
	types, err := r.d.StatsTypes()
	if want := bitmap(virtio.StatsRXSpeed, virtio.StatsTXSpeed); err != nil || types&want != want {
		t.Errorf("statistics %#x, %v", types, err)
	}
	got, err := r.d.Stats(driver.StatsRequest{VQ: 0, Types: bitmap(virtio.StatsRXSpeed)}, driver.StatsRequest{VQ: 1, Types: bitmap(virtio.StatsTXSpeed)})
	if err != nil || len(got) != 2 || len(got[0].Values) != 2 || len(got[1].Values) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	if !r.d.Offer().Has(virtio.FeatureStandby | virtio.FeatureSpeedDuplex | virtio.FeatureGuestHdrLen) {
		t.Errorf("offer %s", r.d.Offer())
	}
	plain := newRig(t, netdev.Config{}, driver.Config{})
	if plain.d.Offer()&(virtio.FeatureStandby|virtio.FeatureSpeedDuplex) != 0 {
		t.Errorf("offer %s", plain.d.Offer())
	}
	for _, speed := range []int{-1, 1 << 31} {
		if _, err := netdev.New(netdev.Config{Speed: speed}, newFakePort(t, 1)); !errors.Is(err, netdev.ErrConfig) {
			t.Errorf("speed %d: %v", speed, err)
		}
	}
}

// TestUSO: UDP segmentation goes both ways if it was negotiated, with the header's
// length as the driver gave it, and not otherwise.
func TestUSO(t *testing.T) {
	const uso = virtio.FeatureCSum | virtio.FeatureHostUSO | virtio.FeatureGuestCSum | virtio.FeatureGuestUSO4 | virtio.FeatureGuestUSO6
	for _, has := range []bool{true, false} {
		p, err := builtin.Echo(1)
		if err != nil {
			t.Fatal(err)
		}
		dev := newDevice(t, netdev.Config{}, p)
		r := &rig{t: t, dev: dev}
		f := driver.DefaultFeatures | uso
		if !has {
			f &^= virtio.FeatureHostUSO
		}
		r.drive(driver.Config{Features: f, RXBufferSize: 4096, TXBufferSize: 4096})
		if !r.d.Features().Has(virtio.FeatureGuestHdrLen) {
			t.Errorf("features %s", r.d.Features())
		}
		h := virtio.NetHeader{Flags: virtio.NetHdrFNeedsCSum, GSOType: virtio.GSOUDPL4, GSOSize: 500, HdrLen: 42, CSumStart: 34, CSumOffset: 6}
		tx := r.d.Pair(0).TX
		r.must(tx.SendPacket(&h, flowFrame(1, 3000)))
		r.must(tx.Send(flowFrame(2, 60)))
		tx.Flush()
		n := 0
		want := 1
		if has {
			want = 2
		}
		r.packets(0, want, func(p *driver.Packet) {
			got := p.Header()
			got.NumBuffers = 0
			if n == 0 && has && got != h || (n == 1 || !has) && got != (virtio.NetHeader{}) {
				t.Errorf("header %+v", got)
			}
			n++
		})
		if drops := r.queue(1).Drops["bad_header_gso_not_negotiated"]; (drops == 0) != has {
			t.Errorf("%d drops", drops)
		}
		r.stop()
		r.must(dev.Close())
	}
}
