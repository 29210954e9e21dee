package netdev_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/port/builtin"
	"github.com/vhostnet/vhostnet/virtio"
)

// images compares guest memory before and after something with what was noted.
type images struct {
	t      *testing.T
	d      *driver.Driver
	before []byte
}

func (m *images) take() {
	_, mem := m.d.Memory()
	m.before = append(m.before[:0], mem...)
	m.d.TakeLog(func(uint64) {})
}

// compare fails if a page has changed that is not noted. It returns how many have,
// and how many are noted.
func (m *images) compare(what string) (changed, noted int) {
	m.t.Helper()
	pages := map[uint64]bool{}
	m.d.TakeLog(func(gpa uint64) { pages[gpa] = true })
	base, mem := m.d.Memory()
	for at := 0; at < len(mem); at += guestmem.LogPage {
		end := min(at+guestmem.LogPage, len(mem))
		if !bytes.Equal(m.before[at:end], mem[at:end]) {
			changed++
			if !pages[base+uint64(at)] {
				m.t.Fatalf("%s: page %#x has changed and is not noted", what, base+uint64(at))
			}
		}
	}
	return changed, len(pages)
}

// TestDirtyLog: whatever a device writes to guest memory, in whatever format and by
// whatever way frames go, is noted. The driver writes only while its rings are
// paused.
func TestDirtyLog(t *testing.T) {
	for name, cfg := range map[string]driver.Config{
		"mergeable":    {},
		"one buffer":   {Without: virtio.FeatureMrgRxBuf, RXBufferSize: 1600},
		"indirect":     {Indirect: true, TXSegments: 3},
		"regions":      {MemRegions: 7, RXBufferSize: 700, QueueSize: 512},
		"no events":    {Without: virtio.FeatureEventIdx, TXSegments: 2},
		"small buffer": {RXBufferSize: 64, QueueSize: 1024},
	} {
		for _, packed := range []bool{false, true} {
			cfg.Packed, cfg.DirtyLog = packed, true
			t.Run(name+map[bool]string{true: " packed"}[packed], func(t *testing.T) { dirtyLog(t, cfg) })
		}
	}
}

func dirtyLog(t *testing.T, cfg driver.Config) {
	r := newRig(t, netdev.Config{}, cfg)
	rnd := rand.New(rand.NewPCG(1, 2))
	if err := errors.Join(r.d.SetRXMode(driver.Promiscuous, false), r.d.StartLog()); err != nil {
		t.Fatal(err)
	}
	img := &images{t: t, d: r.d}
	packets := make([]driver.Packet, 64)
	tx := uint64(0)
	total := 0
	for round := range 8 {
		if err := r.d.Pause(); err != nil {
			t.Fatal(err)
		}
		for r.d.Pair(0).RX.Receive(packets) > 0 {
		}
		for range rnd.IntN(40) {
			if err := r.d.Pair(0).TX.Send(testFrame(0, 60+rnd.IntN(1400))[virtio.NetHeaderLen:]); err != nil {
				t.Fatal(err)
			}
			tx++
		}
		r.d.Pair(0).TX.Flush()
		img.take()
		for i := range 20 {
			f := testFrame(uint32(100*round+i), 60+rnd.IntN(1800))
			switch f := f[virtio.NetHeaderLen:]; rnd.IntN(5) {
			case 0: // for another address: the filter drops it
			case 1: // a header that the driver must not see
			default:
				copy(f, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
			}
			if rnd.IntN(6) == 0 {
				f[1] = virtio.GSOTCPv6
			}
			if rnd.IntN(9) == 0 {
				f = f[:20] // too short
			}
			r.port.queues[0].inject(f)
		}
		if err := r.d.Resume(); err != nil {
			t.Fatal(err)
		}
		q := r.port.queues[0]
		r.until("all frames are taken", func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			return len(q.in) == 0 && len(q.out) == int(tx)
		})
		if err := r.d.Pause(); err != nil {
			t.Fatal(err)
		}
		changed, noted := img.compare("traffic")
		total += changed
		if noted > 3*changed+20 {
			t.Errorf("%d pages have changed, %d are noted", changed, noted)
		}
		if err := r.d.Resume(); err != nil {
			t.Fatal(err)
		}
	}
	if total == 0 {
		t.Error("nothing has changed")
	}
}

// TestDirtyLogShortWay is TestDirtyLog for plain frames of a port that delivers them in
// bursts.
func TestDirtyLogShortWay(t *testing.T) {
	for _, packed := range []bool{false, true} {
		p, err := builtin.Source(1, 900)
		if err != nil {
			t.Fatal(err)
		}
		dev := newDevice(t, netdev.Config{}, p)
		c, ended := connect(t, dev)
		d, err := driver.New(c, driver.Config{Packed: packed, DirtyLog: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.StartLog(); err != nil {
			t.Fatal(err)
		}
		img := &images{t: t, d: d}
		packets := make([]driver.Packet, 64)
		r := &rig{t: t, dev: dev}
		for range 20 {
			if err := d.Pause(); err != nil {
				t.Fatal(err)
			}
			for d.Pair(0).RX.Receive(packets) > 0 {
			}
			img.take()
			had := r.queue(0).Packets
			if err := d.Resume(); err != nil {
				t.Fatal(err)
			}
			r.until("frames", func() bool { return r.queue(0).Packets > had })
			if err := d.Pause(); err != nil {
				t.Fatal(err)
			}
			if changed, _ := img.compare("short way"); changed == 0 {
				t.Error("nothing has changed")
			}
			if err := d.Resume(); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		ended()
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestDirtyLogSwitch: logging comes and goes under traffic, which goes on. Nothing is
// noted while it is off.
func TestDirtyLogSwitch(t *testing.T) {
	for _, packed := range []bool{false, true} {
		p, err := builtin.Source(1, 60)
		if err != nil {
			t.Fatal(err)
		}
		dev := newDevice(t, netdev.Config{}, p)
		c, ended := connect(t, dev)
		d, err := driver.New(c, driver.Config{Packed: packed, DirtyLog: true})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				if _, err := d.Pair(0).RX.Wait(-1); err != nil {
					return
				}
				d.Pair(0).RX.Drop(64)
			}
		}()
		r := &rig{t: t, dev: dev}
		flows := func() {
			had := r.queue(0).Packets
			r.until("frames", func() bool { return r.queue(0).Packets > had+64 })
		}
		pages := func() (n int) {
			d.TakeLog(func(uint64) { n++ })
			return n
		}
		for i := range 40 {
			if err := d.StartLog(); err != nil {
				t.Fatal(err)
			}
			if i%3 == 0 {
				if err := d.StartLog(); err != nil { // another log
					t.Fatal(err)
				}
			}
			flows()
			if pages() == 0 {
				t.Error("frames, and nothing noted")
			}
			if err := d.StopLog(); err != nil {
				t.Fatal(err)
			}
			pages()
			flows()
			if n := pages(); n != 0 {
				t.Errorf("%d pages noted while logging is off", n)
			}
		}
		d.Interrupt()
		<-done
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		ended()
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestDirtyLogShrinks: a log whose file goes away breaks the rings that write, and
// nothing else.
func TestDirtyLogShrinks(t *testing.T) {
	for _, packed := range []bool{false, true} {
		r := newRig(t, netdev.Config{}, driver.Config{Packed: packed, DirtyLog: true})
		if err := r.d.StartLog(); err != nil {
			t.Fatal(err)
		}
		_, mem := r.d.Memory()
		size := int64(len(mem)) // more than enough
		fd, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(fd) }()
		if err := errors.Join(unix.Ftruncate(fd, size), r.d.Frontend().SetLogBase(fd, uint64(size), 0), unix.Ftruncate(fd, 0)); err != nil {
			t.Fatal(err)
		}
		r.port.queues[0].inject(testFrame(1, 100))
		r.until("the receive ring breaks", func() bool { return strings.Contains(r.queue(0).Broken, guestmem.ErrFault.Error()) })
		// With a log that is there, the driver starts over.
		r.stop()
		r.drive(driver.Config{Packed: packed, DirtyLog: true})
		if err := r.d.StartLog(); err != nil {
			t.Fatal(err)
		}
		r.port.queues[0].inject(testFrame(2, 100))
		r.receive(0, 1)
	}
}

// TestDirtyLogForwarding: while writes are noted, a queue without a ring goes on
// handing frames over. It writes to no driver's memory.
func TestDirtyLogForwarding(t *testing.T) {
	r := newRig(t, netdev.Config{QueuePairs: 4, With: hashing}, driver.Config{QueuePairs: 2, Features: driver.DefaultFeatures | hashing, DirtyLog: true})
	cfg := rssConfig()
	cfg.Table, cfg.Unclassified, cfg.MaxTX = []uint16{1}, 0, 2
	r.must(errors.Join(r.d.SetRSS(cfg), r.d.StartLog()))
	r.port.queues[3].inject(r.behindHeader(flowFrame(1, 300)))
	r.packets(1, 1, func(*driver.Packet) {})
}
