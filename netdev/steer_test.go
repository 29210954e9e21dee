package netdev_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/port/builtin"
	"github.com/vhostnet/vhostnet/toeplitz"
	"github.com/vhostnet/vhostnet/virtio"
)

const hashing = virtio.FeatureRSS | virtio.FeatureHashReport

// flowFrame is a UDP/IPv4 frame of n bytes of flow number i, without a header.
func flowFrame(i uint16, n int) []byte {
	f := make([]byte, n)
	copy(f, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2})
	binary.BigEndian.PutUint16(f[34:], 1000+i)
	binary.BigEndian.PutUint16(f[36:], 53)
	for j := 42; j < n; j++ {
		f[j] = byte(j + int(i))
	}
	return f
}

// behindHeader puts the header in front that the port was told of.
func (r *rig) behindHeader(frame []byte) []byte {
	r.port.mu.Lock()
	defer r.port.mu.Unlock()
	return append(make([]byte, r.port.hdrLen), frame...)
}

// packets waits for n frames on a pair and calls each with them.
func (r *rig) packets(pair, n int, each func(*driver.Packet)) {
	r.t.Helper()
	packets := make([]driver.Packet, 64)
	r.until(fmt.Sprintf("%d frames on pair %d", n, pair), func() bool {
		k := r.d.Pair(pair).RX.Receive(packets)
		for i := range k {
			each(&packets[i])
		}
		n -= k
		return n <= 0
	})
}

func rssConfig() driver.RSS {
	r := driver.RSS{Types: toeplitz.All, Table: make([]uint16, 128), Unclassified: 3, MaxTX: 4, Key: make([]byte, 40)}
	for i := range r.Table {
		r.Table[i] = uint16(i % 3)
	}
	for i := range r.Key {
		r.Key[i] = byte(i*37 + 5)
	}
	return r
}

// TestRSS: whatever queue of the port a frame comes from, it reaches the receive
// queue that the indirection table has for its hash, whole, in order, and with the
// hash in its header.
func TestRSS(t *testing.T) {
	for name, d := range map[string]driver.Config{
		"large buffers": {RXBufferSize: 4096},
		"small buffers": {RXBufferSize: 90},
		"tiny buffers":  {RXBufferSize: 22},
		"not mergeable": {RXBufferSize: 4096, Without: virtio.FeatureMrgRxBuf},
		"no report":     {RXBufferSize: 4096, Without: virtio.FeatureHashReport},
		"no MQ":         {RXBufferSize: 4096, Without: virtio.FeatureMQ},
	} {
		t.Run(name, func(t *testing.T) {
			d.QueuePairs, d.QueueSize, d.Features = 4, 4096, driver.DefaultFeatures|hashing
			r := newRig(t, netdev.Config{QueuePairs: 4, With: hashing}, d)
			if key, table, types := r.d.RSSLimits(); key != 40 || table != 128 || types != toeplitz.All {
				t.Fatalf("key of %d, table of %d, types %#x", key, table, types)
			}
			cfg := rssConfig()
			r.must(r.d.SetRSS(cfg))
			if s := r.dev.Snapshot(); s.Steering != "device" || s.ActiveQueuePairs != 4 || s.HashTypes != toeplitz.All {
				t.Errorf("steering %q over %d pairs, types %#x", s.Steering, s.ActiveQueuePairs, s.HashTypes)
			}
			h, flow := toeplitz.New(cfg.Key), toeplitz.Flow{}
			want := map[int][][]byte{}
			const flows = 48
			for i := range uint16(flows) {
				for _, n := range []int{60, 1514} {
					f := flowFrame(i, n)
					flow.Parse(f, cfg.Types)
					to := int(cfg.Table[h.Sum(flow.Input())%128])
					want[to] = append(want[to], f)
					r.port.queues[i%2].inject(r.behindHeader(f))
				}
			}
			arp := testFrame(1, 60)[virtio.NetHeaderLen:]
			want[3] = append(want[3], arp)
			r.port.queues[1].inject(r.behindHeader(arp))
			if len(want[0])*len(want[1])*len(want[2]) == 0 {
				t.Fatal("the flows do not spread")
			}
			for pair, frames := range want {
				// Frames of one flow keep their order, others need not.
				waiting := map[string]int{}
				for _, f := range frames {
					waiting[string(f)]++
				}
				r.packets(pair, len(frames), func(p *driver.Packet) {
					f := p.Frame()
					if waiting[string(f)]--; waiting[string(f)] < 0 {
						t.Errorf("pair %d: a frame of another: % x", pair, f[:42])
					}
					flow.Parse(f, cfg.Types)
					value, report := p.Hash()
					wantValue, wantReport := h.Sum(flow.Input()), flow.Report
					if name == "no report" || wantReport == 0 {
						wantValue, wantReport = 0, 0
					}
					if value != wantValue || report != wantReport {
						t.Errorf("hash %#x, report %d, want %#x, %d", value, report, wantValue, wantReport)
					}
				})
			}
			handed := uint64(0)
			for _, q := range r.dev.Snapshot().Queues {
				handed += q.HandedOver
			}
			if handed == 0 {
				t.Error("no frame was handed over")
			}
			// The driver transmits with such headers as well.
			tx := r.d.Pair(2).TX
			r.must(tx.Send(flowFrame(7, 300)))
			tx.Flush()
			r.until("a frame is sent", func() bool { return len(r.port.queues[2].sent()) == 1 })
			if got := r.port.queues[2].sent()[0]; !bytes.Equal(got, r.behindHeader(flowFrame(7, 300))) {
				t.Errorf("sent % x", got)
			}
		})
	}
}

// TestRSSRefused: what the device does not have is refused, and nothing changes.
func TestRSSRefused(t *testing.T) {
	r := newRig(t, netdev.Config{QueuePairs: 4, With: hashing}, driver.Config{QueuePairs: 4, Features: driver.DefaultFeatures | hashing})
	for name, change := range map[string]func(*driver.RSS){
		"unknown type":            func(c *driver.RSS) { c.Types |= 1 << 9 },
		"table of 256":            func(c *driver.RSS) { c.Table = make([]uint16, 256) },
		"table of 3":              func(c *driver.RSS) { c.Table = c.Table[:3] },
		"table of 65536":          func(c *driver.RSS) { c.Table = nil },
		"queue 4":                 func(c *driver.RSS) { c.Table[127] = 4 },
		"reserved bit":            func(c *driver.RSS) { c.Table[0] = 0x8000 },
		"unclassified 4":          func(c *driver.RSS) { c.Unclassified = 4 },
		"no transmit queue":       func(c *driver.RSS) { c.MaxTX = 0 },
		"five transmit queues":    func(c *driver.RSS) { c.MaxTX = 5 },
		"key of 41 bytes":         func(c *driver.RSS) { c.Key = make([]byte, 41) },
		"types, and no key":       func(c *driver.RSS) { c.Key = nil },
		"transmit queues of 2^16": func(c *driver.RSS) { c.MaxTX = 0xffff },
	} {
		cfg := rssConfig()
		change(&cfg)
		if err := r.d.SetRSS(cfg); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.d.SetHash(1<<31, make([]byte, 40)); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("unknown hash type: %v", err)
	}
	if err := r.d.SetHash(1, make([]byte, 41)); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("long hash key: %v", err)
	}
	if s := r.dev.Snapshot(); s.Steering != "automatic" || s.HashTypes != 0 || s.ActiveQueuePairs != 4 {
		t.Errorf("after refusals: %q, %#x, %d pairs", s.Steering, s.HashTypes, s.ActiveQueuePairs)
	}
	small := rssConfig()
	small.Table, small.Unclassified, small.Types, small.Key = []uint16{1}, 0, 0, nil
	r.must(r.d.SetRSS(small))
	if n := r.dev.Snapshot().ActiveQueuePairs; n != 2 {
		t.Errorf("%d pairs, want 2", n)
	}
}

// TestRSSLarge: tables and keys above the least that the specification asks for.
func TestRSSLarge(t *testing.T) {
	r := newRig(t, netdev.Config{QueuePairs: 2, With: hashing, RSSTable: 4096, RSSKey: 64}, driver.Config{QueuePairs: 2, Features: driver.DefaultFeatures | hashing})
	if key, table, _ := r.d.RSSLimits(); key != 64 || table != 4096 {
		t.Errorf("key of %d, table of %d", key, table)
	}
	cfg := driver.RSS{Types: toeplitz.All, Table: make([]uint16, 4096), MaxTX: 2, Key: make([]byte, 64)}
	cfg.Table[4095] = 1
	r.must(r.d.SetRSS(cfg))
	for name, c := range map[string]netdev.Config{
		"short table": {RSSTable: 64}, "odd table": {RSSTable: 129}, "long table": {RSSTable: 65536},
		"short key": {RSSKey: 39}, "long key": {RSSKey: 256},
	} {
		if _, err := netdev.New(c, newFakePort(t, 1)); !errors.Is(err, netdev.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// steeringPort is a port that steers, or fails to.
type steeringPort struct {
	*fakePort
	calls []*port.Steering
	err   error
}

func (p *steeringPort) Steer(s *port.Steering) error {
	p.calls = append(p.calls, s)
	return p.err
}

// TestSteeringLastCommand: the last of VQ_PAIRS_SET, RSS_CONFIG and HASH_CONFIG decides,
// a reset takes all of it back, and the port is told.
func TestSteeringLastCommand(t *testing.T) {
	p := &steeringPort{fakePort: newFakePort(t, 4)}
	r := &rig{t: t, port: p.fakePort, dev: newDevice(t, netdev.Config{QueuePairs: 4, With: hashing}, p)}
	defer func() { r.must(r.dev.Close()) }()
	r.drive(driver.Config{QueuePairs: 4, Features: driver.DefaultFeatures | hashing})
	is := func(steering string, pairs int, types uint32) {
		t.Helper()
		if s := r.dev.Snapshot(); s.Steering != steering || s.ActiveQueuePairs != pairs || s.HashTypes != types {
			t.Errorf("%q over %d pairs, types %#x; want %q, %d, %#x", s.Steering, s.ActiveQueuePairs, s.HashTypes, steering, pairs, types)
		}
	}
	cfg := rssConfig()
	is("automatic", 4, 0)
	r.must(r.d.SetRSS(cfg))
	is("port", 4, toeplitz.All)
	if len(p.calls) != 1 || p.calls[0].Unclassified != 3 || len(p.calls[0].Table) != 128 || !bytes.Equal(p.calls[0].Key, cfg.Key) {
		t.Fatalf("the port was told %+v", p.calls)
	}
	r.must(r.d.SetQueuePairs(2))
	is("automatic", 2, toeplitz.All)
	if len(p.calls) != 2 || p.calls[1] != nil {
		t.Fatalf("the port was told %+v", p.calls)
	}
	p.err = errors.New("no")
	r.must(r.d.SetRSS(cfg))
	is("device", 4, toeplitz.All)
	r.must(r.d.SetHash(toeplitz.TCPv4, cfg.Key))
	is("automatic", 2, toeplitz.TCPv4)
	p.err = nil
	r.must(r.d.SetRSS(cfg))
	r.stop()
	if n := len(p.calls); p.calls[n-1] != nil {
		t.Error("the port steers without a driver")
	}
	if s := r.dev.Snapshot(); s.Steering != "automatic" || s.HashTypes != 0 {
		t.Errorf("after the driver: %q, %#x", s.Steering, s.HashTypes)
	}
}

// TestHashReport: without RSS the reports' hash has a command of its own; before it
// there is none, and the header is clean.
func TestHashReport(t *testing.T) {
	r := newRig(t, netdev.Config{With: virtio.FeatureHashReport}, driver.Config{Features: driver.DefaultFeatures | virtio.FeatureHashReport, RXBufferSize: 2048})
	for i, want := range []uint16{toeplitz.ReportNone, toeplitz.ReportUDPv4, toeplitz.ReportIPv4, toeplitz.ReportNone} {
		key := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9}
		types := []uint32{0, toeplitz.UDPv4, toeplitz.IPv4, toeplitz.TCPv4}[i]
		if i > 0 {
			r.must(r.d.SetHash(types, key))
		}
		r.port.queues[0].inject(r.behindHeader(flowFrame(1, 100)))
		r.packets(0, 1, func(p *driver.Packet) {
			var f toeplitz.Flow
			f.Parse(p.Frame(), types)
			value, report := p.Hash()
			if report != want || value != toeplitz.New(key).Sum(f.Input()) || p.Header().NumBuffers != 1 {
				t.Errorf("types %#x: hash %#x, report %d, want %d; header %+v", types, value, report, want, p.Header())
			}
		})
	}
	if err := r.d.SetRSS(rssConfig()); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("RSS was not negotiated: %v", err)
	}
}

// TestRSSEcho: answers of a port without a descriptor reach the queue that the
// table names, also those on queues whose ring it leaves out.
func TestRSSEcho(t *testing.T) {
	p, err := builtin.Echo(4)
	if err != nil {
		t.Fatal(err)
	}
	dev := newDevice(t, netdev.Config{QueuePairs: 4, With: hashing}, p)
	r := &rig{t: t, dev: dev}
	defer func() { r.must(dev.Close()) }()
	r.drive(driver.Config{QueuePairs: 4, Features: driver.DefaultFeatures | hashing})
	defer r.stop()
	cfg := rssConfig()
	cfg.Table, cfg.Unclassified = []uint16{1}, 0
	r.must(r.d.SetRSS(cfg))
	const frames = 20
	for pair := range 4 {
		tx := r.d.Pair(pair).TX
		for i := range uint16(frames) {
			r.must(tx.Send(flowFrame(i, 200)))
		}
		tx.Flush()
	}
	r.packets(1, 4*frames, func(p *driver.Packet) {
		if _, report := p.Hash(); report != toeplitz.ReportUDPv4 {
			t.Errorf("report %d", report)
		}
	})
}
