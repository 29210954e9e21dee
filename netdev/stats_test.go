package netdev_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/virtio"
)

func bitmap(kinds ...int) (b uint64) {
	for _, k := range kinds {
		b |= 1 << k
	}
	return b
}

// TestStats: the driver gets the counters of each queue, our notifications among
// them as interrupts.
func TestStats(t *testing.T) {
	const offloads = virtio.FeatureCSum | virtio.FeatureHostTSO4 | virtio.FeatureGuestCSum | virtio.FeatureGuestTSO4
	r := newRig(t, netdev.Config{QueuePairs: 2}, driver.Config{QueuePairs: 2, Features: driver.DefaultFeatures | offloads})
	types, err := r.d.StatsTypes()
	want := bitmap(virtio.StatsRXBasic, virtio.StatsRXCSum, virtio.StatsRXGSO, virtio.StatsTXBasic, virtio.StatsTXCSum, virtio.StatsTXGSO, virtio.StatsCVQ)
	if err != nil || types != want {
		t.Fatalf("types %#x, %v; want %#x", types, err, want)
	}
	// Received: plain, with a partial checksum, verified, and a segment of TCP.
	plain, partial, valid, tso := testFrame(1, 60), testFrame(2, 100), testFrame(3, 80), testFrame(4, 1000)
	h := virtio.NetHeader{Flags: virtio.NetHdrFNeedsCSum, CSumStart: 34, CSumOffset: 16}
	h.Encode(partial[:12])
	valid[0] = virtio.NetHdrFDataValid
	h.GSOType, h.GSOSize = virtio.GSOTCPv4, 400
	h.Encode(tso[:12])
	r.port.queues[1].inject(plain, partial, valid, tso)
	r.receive(1, 4)
	// Transmitted: plain, the same segment, and one whose header is wrong.
	tx := r.d.Pair(0).TX
	r.must(tx.Send(plain[12:]))
	r.must(tx.SendPacket(&h, tso[12:]))
	bad := h
	bad.GSOSize = 0
	r.must(tx.SendPacket(&bad, tso[12:]))
	tx.Flush()
	r.until("all are given back", func() bool { tx.Reclaim(); return tx.Outstanding() == 0 })
	r.until("the counters have settled", func() bool { return r.queue(1).Calls+r.queue(1).CallsSuppressed > 0 })

	got, err := r.d.Stats(
		driver.StatsRequest{VQ: 2, Types: bitmap(virtio.StatsRXBasic, virtio.StatsRXCSum, virtio.StatsRXGSO)},
		driver.StatsRequest{VQ: 1, Types: bitmap(virtio.StatsTXBasic, virtio.StatsTXCSum, virtio.StatsTXGSO)},
		driver.StatsRequest{VQ: 4, Types: bitmap(virtio.StatsCVQ)},
	)
	if err != nil {
		t.Fatal(err)
	}
	rx, txq := r.queue(2), r.queue(1)
	if diff := cmp.Diff([]driver.Stats{
		{VQ: 2, Type: virtio.StatsRXBasic, Values: []uint64{rx.Kicks, 4, 1240, rx.Calls, 0, 0}},
		{VQ: 2, Type: virtio.StatsRXCSum, Values: []uint64{1, 2, 1, 0}},
		{VQ: 2, Type: virtio.StatsRXGSO, Values: []uint64{1, 1000, 0, 0}},
		{VQ: 1, Type: virtio.StatsTXBasic, Values: []uint64{txq.Kicks, 2, 1060, txq.Calls, 1, 1}},
		{VQ: 1, Type: virtio.StatsTXCSum, Values: []uint64{1, 1}},
		{VQ: 1, Type: virtio.StatsTXGSO, Values: []uint64{1, 1000, 0, 0, 1, 1000}},
		{VQ: 4, Type: virtio.StatsCVQ, Values: []uint64{3, 3}}, // VQ_PAIRS_SET, QUERY, this one
	}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if rx.Calls == 0 {
		t.Error("no interrupt")
	}
	for name, q := range map[string]driver.StatsRequest{
		"queue 5":                {VQ: 5, Types: bitmap(virtio.StatsRXBasic)},
		"queue 65535":            {VQ: 65535, Types: bitmap(virtio.StatsCVQ)},
		"receive of a tx queue":  {VQ: 1, Types: bitmap(virtio.StatsRXBasic)},
		"transmit of a rx queue": {VQ: 2, Types: bitmap(virtio.StatsTXGSO)},
		"control of a rx queue":  {VQ: 2, Types: bitmap(virtio.StatsCVQ)},
		"basic of the control":   {VQ: 4, Types: bitmap(virtio.StatsRXBasic)},
		"speed":                  {VQ: 2, Types: bitmap(virtio.StatsRXSpeed)},
		"unknown type":           {VQ: 2, Types: 1 << 63},
	} {
		if _, err := r.d.Stats(driver.StatsRequest{VQ: 2, Types: bitmap(virtio.StatsRXBasic)}, q); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.stop()
	r.drive(driver.Config{}) // without offloads there are no statistics of them
	if types, err := r.d.StatsTypes(); err != nil || types != bitmap(virtio.StatsRXBasic, virtio.StatsTXBasic, virtio.StatsCVQ) {
		t.Errorf("types %#x, %v", types, err)
	}
	if _, err := r.d.Stats(driver.StatsRequest{VQ: 0, Types: bitmap(virtio.StatsRXCSum)}); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("checksums: %v", err)
	}
}
