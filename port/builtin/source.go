package builtin

import (
	"encoding/binary"
	"fmt"

	"github.com/vhostnet/vhostnet/internal/prefetch"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

const (
	// DefaultSize and MinSize are the shortest Ethernet frame, without its
	// checksum.
	DefaultSize = 60
	MinSize     = 60
	// MaxSize is the largest frame that the other ports have too: 65535 bytes
	// behind an Ethernet header.
	MaxSize = 65535 + ethHeader
	// EtherType marks the frames: "local experimental" (IEEE 802).
	EtherType = 0x88B5
)

// SourceMAC and DestMAC are the addresses in a source's frames; both are
// unicast and locally administered.
var (
	SourceMAC = [6]byte{0x02, 0x56, 0x4E, 0x53, 0x00, 0x01}
	DestMAC   = [6]byte{0x02, 0x56, 0x4E, 0x53, 0x00, 0x02}
)

// Where a frame of a source carries what, from the start of the frame.
const (
	// SeqOffset is where the frame's number is: 64 bits, big-endian, counted
	// from 0 on each queue.
	SeqOffset = 14
	// QueueOffset is where the queue's number is: 16 bits, big-endian.
	QueueOffset = 22
	fillOffset  = 24
)

type source struct {
	base
	header
}

var (
	_ port.Port       = (*source)(nil)
	_ port.Configurer = (*source)(nil)
)

// Source returns a port that always has a frame of the given size in bytes,
// [MinSize] to [MaxSize], and takes every frame. Its header is zero. A frame that
// does not fit is lost: its number is missing then.
func Source(queues, size int) (port.Port, error) {
	if err := checkSize(size); err != nil {
		return nil, err
	}
	s := new(source)
	s.size.Store(virtio.NetHeaderLen)
	name := fmt.Sprintf("source:%d", size)
	var err error
	s.base, err = newBase("source", name, queues, func(i int) port.PortQueue { return newSourceQueue(&s.header, i, size) })
	if err != nil {
		return nil, err
	}
	return s, nil
}

func checkSize(size int) error {
	if size < MinSize || size > MaxSize {
		return fmt.Errorf("builtin: open source: frame size %d: want %d to %d", size, MinSize, MaxSize)
	}
	return nil
}

// Reset does nothing: a source has no state that a driver could find.
func (s *source) Reset() error { return nil }

// sourceQueue belongs to one worker.
type sourceQueue struct {
	sink
	header *header
	seq    uint64
	// frame is the next one behind the largest header; a smaller header starts
	// further in.
	frame []byte
	_     [64]byte // another worker's queue may follow: keep off its cache line
}

var _ port.BurstQueue = (*sourceQueue)(nil)

func newSourceQueue(h *header, i, size int) *sourceQueue {
	q := &sourceQueue{header: h, frame: make([]byte, virtio.NetHeaderMax+size)}
	f := q.frame[virtio.NetHeaderMax:]
	copy(f, DestMAC[:])
	copy(f[6:], SourceMAC[:])
	binary.BigEndian.PutUint16(f[12:], EtherType)
	binary.BigEndian.PutUint16(f[QueueOffset:], uint16(i))
	for j := fillOffset; j < len(f); j++ {
		f[j] = byte(j)
	}
	return q
}

func (q *sourceQueue) Recv(bufs [][]byte) (int, error) {
	hdr := int(q.header.size.Load())
	frame := q.frame[virtio.NetHeaderMax-hdr:]
	seq := q.seq
	q.seq++
	if len(bufs) > 0 && len(bufs[0]) >= len(frame) {
		// The number is put into the copy: a copy of bytes that were stored a
		// moment ago, in another width, waits for that store.
		b := bufs[0][:len(frame)]
		copy(b, frame)
		binary.BigEndian.PutUint64(b[hdr+SeqOffset:], seq)
		return len(frame), nil
	}
	binary.BigEndian.PutUint64(frame[hdr+SeqOffset:], seq)
	return scatter(bufs, frame)
}

// RecvBurst is Recv for many frames.
func (q *sourceQueue) RecvBurst(bufs [][]byte, hdr int, lens []uint32) (int, bool) {
	frame, seq := q.frame[virtio.NetHeaderMax:], q.seq
	n, i := len(frame), 0
	prefetch.Write(bufs)
	for ; i < len(bufs) && i < len(lens); i++ {
		b := bufs[i]
		if len(b) < hdr+n {
			break
		}
		b = b[hdr : hdr+n]
		CopyFrame(b, frame)
		binary.BigEndian.PutUint64(b[SeqOffset:], seq)
		seq++
		lens[i] = uint32(hdr + n)
	}
	q.seq = seq
	return i, true
}
