package netdev_test

import (
	"runtime"
	"testing"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/port/builtin"
)

// TestNoAllocations moves packets each way through a device and counts what was
// allocated meanwhile, by anybody in the process: a few wake-ups of the runtime
// over the whole run, and nothing that grows with packets.
func TestNoAllocations(t *testing.T) {
	const packets = 200_000
	allowed := uint64(400)
	if raceEnabled {
		// The detector's build keeps closures on the heap: one a wake-up.
		allowed = packets / 50
	}
	open := func(p port.Port, err error) port.Port {
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	hashed := false
	run := func(t *testing.T, p port.Port, move func(*driver.Driver) int) {
		cfg := netdev.Config{}
		if hashed {
			cfg.With = hashing
		}
		dev := newDevice(t, cfg, p)
		c, ended := connect(t, dev)
		d, err := driver.New(c, format(driver.Config{Features: driver.DefaultFeatures | hashing}))
		if err != nil {
			t.Fatal(err)
		}
		if hashed {
			rss := rssConfig()
			rss.Table, rss.Unclassified, rss.MaxTX = []uint16{0, 0}, 0, 1
			if err := d.SetRSS(rss); err != nil {
				t.Fatal(err)
			}
		}
		for moved := 0; moved < packets/10; {
			moved += move(d)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for moved := 0; moved < packets; {
			moved += move(d)
		}
		runtime.ReadMemStats(&after)
		if n := after.Mallocs - before.Mallocs; n > allowed {
			t.Errorf("%d allocations for %d packets", n, packets)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		ended()
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, size := range []int{60, 1514, 61} {
		frame := make([]byte, size)
		hashed = size == 61
		run(t, open(builtin.Null(1)), func(d *driver.Driver) int {
			tx := d.Pair(0).TX
			n := tx.Reclaim()
			for tx.Send(frame) == nil {
			}
			if _, err := tx.Wait(patience); err != nil {
				t.Fatal(err)
			}
			return n
		})
		run(t, open(builtin.Source(1, size)), func(d *driver.Driver) int {
			rx := d.Pair(0).RX
			n := rx.Drop(64)
			if n == 0 {
				if _, err := rx.Wait(patience); err != nil {
					t.Fatal(err)
				}
			}
			return n
		})
	}
}
