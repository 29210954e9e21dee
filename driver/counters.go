package driver

import "sync/atomic"

// Counters are the counters of one virtqueue, or sums of them.
type Counters struct {
	// Packets and Bytes count frames, without virtio-net headers: received ones,
	// or those given to the device.
	Packets, Bytes uint64
	// Completed counts buffers that the device has given back. A received frame
	// over several buffers counts them all.
	Completed uint64
	// Short counts receive buffers that came back with less than a header.
	Short uint64
	// Kicks counts the notifications sent to the device, KicksSuppressed the
	// publications at which it wanted none.
	Kicks, KicksSuppressed uint64
	// Notifications is the sum of the values read from the call eventfd: how
	// often the device has notified.
	Notifications uint64
	// Sleeps counts the times Wait went to sleep, Wakeups the times a
	// notification ended the sleep, and Spurious those of them that found
	// nothing to do.
	Sleeps, Wakeups, Spurious uint64
}

// Add adds o to c.
func (c *Counters) Add(o Counters) {
	c.Packets += o.Packets
	c.Bytes += o.Bytes
	c.Completed += o.Completed
	c.Short += o.Short
	c.Kicks += o.Kicks
	c.KicksSuppressed += o.KicksSuppressed
	c.Notifications += o.Notifications
	c.Sleeps += o.Sleeps
	c.Wakeups += o.Wakeups
	c.Spurious += o.Spurious
}

// Sub returns what has been counted since the earlier snapshot o.
func (c Counters) Sub(o Counters) Counters {
	return Counters{
		Packets: c.Packets - o.Packets, Bytes: c.Bytes - o.Bytes, Completed: c.Completed - o.Completed,
		Short: c.Short - o.Short,
		Kicks: c.Kicks - o.Kicks, KicksSuppressed: c.KicksSuppressed - o.KicksSuppressed,
		Notifications: c.Notifications - o.Notifications,
		Sleeps:        c.Sleeps - o.Sleeps, Wakeups: c.Wakeups - o.Wakeups, Spurious: c.Spurious - o.Spurious,
	}
}

// counter has one writer, the goroutine that uses the virtqueue, and any number
// of readers, so a load and a store do instead of a locked addition.
type counter struct{ v atomic.Uint64 }

func (c *counter) add(n uint64) { c.v.Store(c.v.Load() + n) }

type queueCounters struct {
	packets, bytes, completed, short, kicks, kicksSuppressed counter
	notifications, sleeps, wakeups, spurious                 counter
}

func (c *queueCounters) snapshot() Counters {
	return Counters{
		Packets: c.packets.v.Load(), Bytes: c.bytes.v.Load(), Completed: c.completed.v.Load(),
		Short: c.short.v.Load(),
		Kicks: c.kicks.v.Load(), KicksSuppressed: c.kicksSuppressed.v.Load(),
		Notifications: c.notifications.v.Load(),
		Sleeps:        c.sleeps.v.Load(), Wakeups: c.wakeups.v.Load(), Spurious: c.spurious.v.Load(),
	}
}
