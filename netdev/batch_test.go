package netdev_test

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

// batchPort is a fakePort whose queue sends in batches: of each it takes a few, of
// which it loses every seventh, and is full then.
type batchPort struct {
	*fakePort
	queue batchQueue
}

type batchQueue struct {
	*fakeQueue
	taken, lost int // the worker's
	largest     atomic.Int64
	told        atomic.Int64
}

var _ port.BatchQueue = (*batchQueue)(nil)

func (p *batchPort) Queue(int) port.PortQueue { return &p.queue }

func (q *batchQueue) SendBatch(frames [][][]byte, errs []error) {
	q.largest.Store(max(q.largest.Load(), int64(len(frames))))
	room := 1 + q.taken%5
	for i, f := range frames {
		switch {
		case i == room:
			for k := range errs[i:] {
				errs[i+k] = port.ErrWouldBlock
			}
			q.poke() // an eventfd is always writable; the poke makes the edge
			return
		case q.taken%7 == 6:
			errs[i] = fmt.Errorf("%w: one in seven", port.ErrDropped)
			q.lost++
		default:
			errs[i] = q.Send(f)
		}
		q.taken++
	}
}

func (q *batchQueue) Readable() { q.told.Add(1) }

// TestBatches: frames among bad ones go to a port that takes a few at a time; each is
// offered until it was taken, and taken once.
func TestBatches(t *testing.T) {
	p := &batchPort{fakePort: newFakePort(t, 1)}
	p.queue.fakeQueue = p.queues[0]
	r := &rig{t: t, port: p.fakePort, dev: newDevice(t, netdev.Config{}, p)}
	r.drive(driver.Config{})
	const frames = 2000
	tx := r.d.Pair(0).TX
	for i := uint32(0); i < frames; {
		tx.Reclaim()
		h := virtio.NetHeader{}
		if i%50 == 49 {
			h.GSOType, h.GSOSize = 0x7f, 100
		}
		f := testFrame(i, 60+int(i%7)*50)[virtio.NetHeaderLen:]
		if err := tx.SendPacket(&h, f); err != nil {
			tx.Flush()
			if _, err := tx.Wait(patience); err != nil {
				t.Fatal(err)
			}
			continue
		}
		i++
	}
	tx.Flush()
	const bad = frames / 50
	r.until("all are dealt with", func() bool {
		s := r.queue(1)
		return s.Packets+s.Drops["port"]+s.Drops["bad_header"] == frames
	})
	s := r.queue(1)
	if want := uint64(frames-bad) / 7; s.Drops["bad_header"] != bad || s.Drops["port"] != want {
		t.Errorf("drops: %v", s.Drops)
	}
	got, taken := p.queue.sent(), 0
	for i := range uint32(frames) {
		if i%50 == 49 {
			continue
		}
		taken++
		if taken%7 == 0 {
			continue
		}
		if want := testFrame(i, 60+int(i%7)*50); len(got) == 0 || !bytes.Equal(got[0], want) {
			t.Fatalf("frame %d is missing, or another one", i)
		}
		got = got[1:]
	}
	if len(got) > 0 || p.queue.largest.Load() < 2 {
		t.Errorf("%d frames too many; the largest batch was of %d", len(got), p.queue.largest.Load())
	}
	before := p.queue.told.Load()
	p.queue.inject(testFrame(1, 60))
	r.receive(0, 1)
	if p.queue.told.Load() == before {
		t.Error("the port was not told that it is readable")
	}
	r.stop()
	if err := r.dev.Close(); err != nil {
		t.Error(err)
	}
}
