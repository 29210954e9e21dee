package driver

import (
	"encoding/binary"
	"testing"
)

// give completes the next n entries in a loop without anything around it, so that
// a benchmark measures the driver.
func (d *dumbDevice) give(n, length int) {
	mask := d.size - 1
	for range n {
		id := uint64(binary.LittleEndian.Uint16(d.availRing[2*(d.lastAvail&mask):]))
		binary.LittleEndian.PutUint64(d.usedRing[8*(d.usedIdx&mask):], id|uint64(length)<<32)
		d.lastAvail++
		d.usedIdx++
	}
	d.publish(0)
}

// The benchmarks count one operation per packet, in batches of 32. The device's
// part of it is about two nanoseconds.
const batch = 32

func BenchmarkSend(b *testing.B) {
	d := newOffline(b, Config{}, modern)
	dev, tx := newDumbDevice(b, d, 1), d.Pair(0).TX
	frame := pattern(60, 1)
	dev.setAvailEvent(0x8000)
	for i := 0; i < b.N; i += batch {
		for range batch {
			if err := tx.Send(frame); err != nil {
				b.Fatal(err)
			}
		}
		tx.Flush()
		dev.give(batch, 0)
	}
}

func BenchmarkSendPrepared(b *testing.B) {
	d := newOffline(b, Config{}, modern)
	dev, tx := newDumbDevice(b, d, 1), d.Pair(0).TX
	dev.setAvailEvent(0x8000)
	for i := 0; i < b.N; i += batch {
		if tx.SendPrepared(batch, 60) != batch {
			b.Fatal("full")
		}
		tx.Flush()
		dev.give(batch, 0)
	}
}

func benchmarkRX(b *testing.B, receive func(*RX) int) {
	d := newOffline(b, Config{}, modern)
	dev, rx := newDumbDevice(b, d, 0), d.Pair(0).RX
	dev.setAvailEvent(0x8000)
	for i := range uint16(256) {
		rx.buffer(i, 12)[10] = 1
	}
	for i := 0; i < b.N; i += batch {
		dev.give(batch, 72)
		if receive(rx) != batch {
			b.Fatal(rx.Err())
		}
	}
}

func BenchmarkReceive(b *testing.B) {
	packets := make([]Packet, batch)
	benchmarkRX(b, func(r *RX) int { return r.Receive(packets) })
}

func BenchmarkDrop(b *testing.B) {
	benchmarkRX(b, func(r *RX) int { return r.Drop(batch) })
}
