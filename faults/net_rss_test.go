package faults

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/virtio"
)

// rss is an RSS_CONFIG command whose parts need not agree.
type rss struct {
	types                     uint32
	mask, unclassified, maxTX uint16
	table                     []uint16
	keyLen                    byte
	key                       []byte
}

// goodRSS steers over four pairs; frames without a hash, which are those of the
// test, go to pair.
func goodRSS(pair uint16) rss {
	r := rss{types: 0x1FF, mask: 127, unclassified: pair, maxTX: 4, table: make([]uint16, 128), keyLen: 40, key: make([]byte, 40)}
	for i := range r.table {
		r.table[i] = uint16(i % 4)
	}
	return r
}

func (r rss) bytes() []byte {
	b := le32(r.types)
	b = binary.LittleEndian.AppendUint16(b, r.mask)
	b = binary.LittleEndian.AppendUint16(b, r.unclassified)
	for _, v := range r.table {
		b = binary.LittleEndian.AppendUint16(b, v)
	}
	b = binary.LittleEndian.AppendUint16(b, r.maxTX)
	return append(append(b, r.keyLen), r.key...)
}

// hashConfig is the data of HASH_CONFIG.
func hashConfig(types uint32, keyLen byte, key int) []byte {
	return append(append(append(le32(types), make([]byte, 8)...), keyLen), make([]byte, key)...)
}

// N11: RSS tables and keys that are not what they say, or name what is not there,
// are refused when the command comes, and what was in force stays in force.
func TestN11RSS(t *testing.T) {
	t.Parallel()
	const control = 8
	c, api := serveAPI(t, "echo", "--queue-pairs=4", "--features=+rss,+hash_report")
	g := c.Dial(t)
	g.Hello(virtio.FeatureMQ | virtio.FeatureRSS | virtio.FeatureHashReport)
	watch(g, 0, 1, 2, 3, 4, 5, 6, 7, control)
	config := func(want uint8, r rss) {
		t.Helper()
		expectAck(t, g, control, want, virtio.CtrlMQ, virtio.CtrlMQRSSConfig, r.bytes()...)
	}
	// arrives sends a frame on a pair, and expects its echo on another one.
	arrives := func(from, to int) {
		t.Helper()
		for pair := range 4 {
			if q := 2 * pair; g.Ring(q).Outstanding() == 0 {
				g.Post(q, 1)
			}
		}
		f := g.Frame(60)
		g.Transmit(2*from+1, f)
		if _, got := g.Receive(2 * to); scripted.Seq(got) != scripted.Seq(f) {
			t.Fatalf("pair %d gets frame %d, want %d", to, scripted.Seq(got), scripted.Seq(f))
		}
	}
	arrives(0, 0)
	config(virtio.CtrlOK, goodRSS(2))
	arrives(1, 2)

	for name, change := range map[string]func(*rss){
		"a table of 3":                     func(r *rss) { r.mask, r.table = 2, r.table[:3] },
		"a table of 65536 that is empty":   func(r *rss) { r.mask, r.table = 0xFFFF, nil },
		"a table of 65536 that is not":     func(r *rss) { r.mask = 0xFFFF },
		"a table of 65536 that is whole":   func(r *rss) { r.mask, r.table = 0xFFFF, make([]uint16, 65536) },
		"a table of 129":                   func(r *rss) { r.mask, r.table = 128, append(r.table, 0) },
		"a table of 256":                   func(r *rss) { r.mask, r.table = 255, append(r.table, r.table...) },
		"a table shorter than its length":  func(r *rss) { r.table = r.table[:1] },
		"a table longer than its length":   func(r *rss) { r.mask = 63 },
		"queue 4":                          func(r *rss) { r.table[127] = 4 },
		"queue 65535":                      func(r *rss) { r.table[0] = 0xFFFF },
		"a queue whose low bits are right": func(r *rss) { r.table[64] = 0x8000 },
		"unclassified to 4":                func(r *rss) { r.unclassified = 4 },
		"unclassified to 65535":            func(r *rss) { r.unclassified = 0xFFFF },
		"no transmit queue":                func(r *rss) { r.maxTX = 0 },
		"five transmit queues":             func(r *rss) { r.maxTX = 5 },
		"a key of 41":                      func(r *rss) { r.keyLen, r.key = 41, make([]byte, 41) },
		"a key of 255":                     func(r *rss) { r.keyLen, r.key = 255, make([]byte, 255) },
		"a key of 0":                       func(r *rss) { r.keyLen, r.key = 0, nil },
		"a key that is cut off":            func(r *rss) { r.keyLen = 41 },
		"a key of 255, of which 40 are":    func(r *rss) { r.keyLen = 255 },
		"a key of 1, of which 40 are":      func(r *rss) { r.keyLen = 1 },
		"unknown hash types":               func(r *rss) { r.types = 0xFFFFFFFF },
	} {
		r := goodRSS(3)
		change(&r)
		before := api.device(t).Control.Err
		config(virtio.CtrlErr, r)
		if n := api.device(t).Control.Err - before; n != 1 {
			t.Errorf("%s: %d commands are counted as refused", name, n)
		}
	}
	// What is cut off anywhere, and what is too long.
	whole := goodRSS(3).bytes()
	for n := range len(whole) {
		expectAck(t, g, control, virtio.CtrlErr, virtio.CtrlMQ, virtio.CtrlMQRSSConfig, whole[:n]...)
	}
	expectAck(t, g, control, virtio.CtrlErr, virtio.CtrlMQ, virtio.CtrlMQRSSConfig, append(whole, 0, 0)...)
	for _, b := range [][]byte{
		hashConfig(1, 0, 0), hashConfig(1, 41, 41), hashConfig(1, 40, 39), hashConfig(1, 1, 40), hashConfig(1<<9, 40, 40),
		hashConfig(0xFFFFFFFF, 40, 40), hashConfig(1, 40, 0), hashConfig(1, 40, 40)[:12], hashConfig(1, 40, 40)[:3],
	} {
		expectAck(t, g, control, virtio.CtrlErr, virtio.CtrlMQ, virtio.CtrlMQHashConfig, b...)
	}
	arrives(1, 2)
	if d := api.device(t); d.Steering != "device" || d.ActiveQueuePairs != 4 || d.HashTypes != 0x1FF {
		t.Errorf("steering by %q over %d pairs, types %#x", d.Steering, d.ActiveQueuePairs, d.HashTypes)
	}

	// The number of pairs changes under the table: it is out of force then.
	expectAck(t, g, control, virtio.CtrlOK, virtio.CtrlMQ, virtio.CtrlMQVQPairsSet, 1, 0)
	arrives(0, 0)
	expectAck(t, g, control, virtio.CtrlErr, virtio.CtrlMQ, virtio.CtrlMQVQPairsSet, 5, 0)
	arrives(0, 0)
	config(virtio.CtrlOK, goodRSS(3))
	arrives(0, 3)
	// The queue that frames are steered to stops, and comes back.
	base, err := g.GetVringBase(6)
	g.Must(err)
	g.Transmit(1, g.Frame(60))
	g.Must(g.SetVringEnable(6, true))
	g.StartAt(6, uint16(base))
	barrier(g, 0, 6)
	for g.Ring(6).UsedIdx() != g.Ring(6).Seen { // it may have waited for the queue
		g.Receive(6)
	}
	arrives(0, 3)
	small := rss{maxTX: 1, table: []uint16{1}, unclassified: 1}
	config(virtio.CtrlOK, small)
	arrives(0, 1)
	c.Alive(g)

	// The next driver has none of that.
	g = c.Dial(t)
	g.Hello(virtio.FeatureMQ | virtio.FeatureRSS)
	watch(g, 0, 1, control)
	arrivesAlone := func() { t.Helper(); c.RoundTrip(g) }
	arrivesAlone()
	expectAck(t, g, control, virtio.CtrlErr, virtio.CtrlMQ, virtio.CtrlMQHashConfig, hashConfig(1, 40, 40)...)
	config(virtio.CtrlOK, goodRSS(0))
	arrivesAlone()
	c.Alive(g)
}

// N11: commands of classes whose feature this driver has not accepted are refused,
// although the device has them.
func TestN11NotNegotiated(t *testing.T) {
	t.Parallel()
	type cmd struct {
		needs      virtio.Features
		class, cmd uint8
		data       []byte
	}
	stats := slices.Concat(make([]byte, 8), le32(1, 0))
	const mq = virtio.FeatureMQ
	all := []cmd{
		{virtio.FeatureCtrlRX, virtio.CtrlRX, virtio.CtrlRXPromisc, []byte{0}},
		{virtio.FeatureCtrlRXExtra, virtio.CtrlRX, virtio.CtrlRXNoBcast, []byte{0}},
		{virtio.FeatureCtrlRX, virtio.CtrlMAC, virtio.CtrlMACTableSet, macTable(nil, nil)},
		{virtio.FeatureCtrlMACAddr, virtio.CtrlMAC, virtio.CtrlMACAddrSet, []byte{2, 0x56, 0x4E, 0x53, 0, 9}},
		{virtio.FeatureCtrlVLAN, virtio.CtrlVLAN, virtio.CtrlVLANAdd, []byte{1, 0}},
		{virtio.FeatureGuestAnnounce, virtio.CtrlAnnounce, virtio.CtrlAnnounceAck, nil},
		{mq, virtio.CtrlMQ, virtio.CtrlMQVQPairsSet, []byte{1, 0}},
		{virtio.FeatureRSS, virtio.CtrlMQ, virtio.CtrlMQRSSConfig, goodRSS(0).bytes()},
		{virtio.FeatureHashReport, virtio.CtrlMQ, virtio.CtrlMQHashConfig, hashConfig(1, 40, 40)},
		{virtio.FeatureCtrlGuestOffloads, virtio.CtrlGuestOffloads, virtio.CtrlGuestOffloadsSet, make([]byte, 8)},
		{virtio.FeatureNotfCoal, virtio.CtrlNotfCoal, virtio.CtrlNotfCoalTXSet, le32(1, 0)},
		{virtio.FeatureNotfCoal, virtio.CtrlNotfCoal, virtio.CtrlNotfCoalRXSet, le32(1, 0)},
		{virtio.FeatureVQNotfCoal, virtio.CtrlNotfCoal, virtio.CtrlNotfCoalVQSet, append(make([]byte, 4), le32(1, 0)...)},
		{virtio.FeatureDeviceStats, virtio.CtrlStats, virtio.CtrlStatsGet, stats},
	}
	c := scripted.Serve(t, "null", "--queue-pairs=4", "--features=+rss,+hash_report")
	offer, err := func() (virtio.Features, error) {
		g := c.Dial(t)
		defer func() { _ = g.Close() }()
		return g.GetFeatures()
	}()
	if err != nil {
		t.Fatal(err)
	}
	c.Idle()
	var accepted virtio.Features
	for _, one := range all {
		accepted |= one.needs
	}
	if !offer.Has(accepted) {
		t.Fatalf("not offered: %v", accepted&^offer)
	}
	for _, f := range append([]virtio.Features{0, accepted}, eachBit(accepted)...) {
		g := c.Dial(t)
		g.Hello(f)
		control := 2
		if f&(mq|virtio.FeatureRSS) != 0 {
			control = 8
		}
		watch(g, 0, 1, control)
		for _, one := range all {
			want := uint8(virtio.CtrlErr)
			if f.Has(one.needs) {
				want = virtio.CtrlOK
			}
			expectAck(t, g, control, want, one.class, one.cmd, one.data...)
		}
		c.RoundTrip(g)
		c.Alive(g)
	}
}

// eachBit are the bits of f, one by one.
func eachBit(f virtio.Features) (list []virtio.Features) {
	for ; f != 0; f &= f - 1 {
		list = append(list, f&-f)
	}
	return list
}
