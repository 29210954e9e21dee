package scripted

import (
	"encoding/binary"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

var ne = binary.NativeEndian

// Default are the features of HELLO.
const Default = virtio.FeatureVersion1 | virtio.FeatureProtocolFeatures | virtio.FeatureMrgRxBuf | virtio.FeatureCtrlVQ

// DefaultSize is the number of entries of a ring.
const DefaultSize = 256

// EtherType is the type of the frames.
const EtherType = 0x88B5

// Guest is one connection with its memory and rings. The embedded Frontend
// carries single requests, and SendRaw and RecvRaw those that break the rules.
type Guest struct {
	*vhostuser.Frontend
	Conn *net.UnixConn
	Mem  *Memory
	// Size is the number of entries of rings that are not made yet.
	Size int
	// Features were negotiated; header sizes follow from them.
	Features virtio.Features

	tb    testing.TB
	rings map[int]*Ring
	seq   uint64
}

// NewGuest makes a guest on a connection, which is closed when the test ends.
func NewGuest(tb testing.TB, c *net.UnixConn, m *Memory) *Guest {
	tb.Cleanup(func() { _ = c.Close() })
	return &Guest{Frontend: vhostuser.NewFrontend(c), Conn: c, Mem: m, Size: DefaultSize, tb: tb, rings: make(map[int]*Ring)}
}

// Adopt takes over memory and rings from a guest whose connection is gone, as a
// front-end does that connects again.
func (g *Guest) Adopt(old *Guest) {
	g.Mem, g.Size, g.rings, g.seq = old.Mem, old.Size, old.rings, old.seq
}

// Must ends the test on an error.
func (g *Guest) Must(err error) {
	g.tb.Helper()
	if err != nil {
		g.tb.Fatal(err)
	}
}

// Hello greets with the default features and these, with all protocol features
// that are on offer, and shares R0.
func (g *Guest) Hello(more virtio.Features) { g.tb.Helper(); g.HelloExactly(Default | more) }

// HelloExactly greets with exactly these features.
func (g *Guest) HelloExactly(f virtio.Features) {
	g.tb.Helper()
	g.Greet(f)
	g.Must(g.SetMemTable([]guestmem.Region{g.Mem.Region}, []int{g.Mem.FD}))
}

// Greet is HELLO without the memory table.
func (g *Guest) Greet(f virtio.Features) {
	g.tb.Helper()
	offer, err := g.GetFeatures()
	g.Must(err)
	if !offer.Has(f) {
		g.tb.Fatalf("not offered: %v", f&^offer)
	}
	g.Must(g.SetOwner())
	p, err := g.GetProtocolFeatures()
	g.Must(err)
	g.Must(g.SetProtocolFeatures(p))
	g.Must(g.SetFeatures(f))
	g.Features = f
}

// Ring returns ring q; it is made and cleared when it is first asked for.
func (g *Guest) Ring(q int) *Ring {
	g.tb.Helper()
	r := g.rings[q]
	if r == nil {
		if g.Size > 1024 {
			g.tb.Fatalf("the layout has no room for rings of %d", g.Size)
		}
		at := uint64(RingBase + q*RingStride)
		r = &Ring{
			Index: q, Size: g.Size, Desc: at, Avail: at + AvailPart, Used: at + UsedPart, mem: g.Mem,
			Kick: Eventfd(g.tb), Call: Eventfd(g.tb), Err: Eventfd(g.tb),
		}
		r.Reset(0)
		g.rings[q] = r
	}
	return r
}

// SendAddr sends the addresses of ring q.
func (g *Guest) SendAddr(q int) error {
	g.tb.Helper()
	r := g.Ring(q)
	return g.SetVringAddr(q, g.Mem.User(r.Desc), g.Mem.User(r.Avail), g.Mem.User(r.Used))
}

// Start starts rings at base 0, or where they are if they have been used.
func (g *Guest) Start(qs ...int) {
	g.tb.Helper()
	for _, q := range qs {
		g.StartAt(q, g.Ring(q).Seen)
	}
}

// StartAt starts ring q at a base; the ring's memory stays as it is.
func (g *Guest) StartAt(q int, base uint16) {
	g.tb.Helper()
	r := g.Ring(q)
	g.Must(g.SetVringNum(q, r.Size))
	g.Must(g.SetVringBase(q, uint32(base)))
	g.Must(g.SendAddr(q))
	g.Must(g.SetVringKick(q, r.Kick))
	g.Must(g.SetVringCall(q, r.Call))
	g.Must(g.SetVringEnable(q, true))
}

// HeaderSize is the size of the virtio-net header in bytes.
func (g *Guest) HeaderSize() int { return virtio.NetHeaderSize(g.Features) }

// Frame makes a frame of n bytes, at least 22, with the next sequence number.
func (g *Guest) Frame(n int) []byte {
	g.seq++
	return Frame(g.seq, n)
}

// Frame makes a frame of n bytes, at least 22: addresses, EtherType, 64 bits of
// sequence number, and a fill that depends on it.
func Frame(seq uint64, n int) []byte {
	f := make([]byte, n)
	copy(f, []byte{2, 0x56, 0x4E, 0x53, 0, 1, 2, 0x56, 0x4E, 0x53, 0, 2})
	binary.BigEndian.PutUint16(f[12:], EtherType)
	binary.BigEndian.PutUint64(f[14:], seq)
	for i := 22; i < n; i++ {
		f[i] = byte(uint64(i) + seq)
	}
	return f
}

// Seq is the sequence number in a frame.
func Seq(frame []byte) uint64 {
	if len(frame) < 22 {
		return 0
	}
	return binary.BigEndian.Uint64(frame[14:])
}

// Queue puts a frame behind a header of zeros on ring q and publishes it, without
// a kick. Its buffer is the one of its descriptor's number.
func (g *Guest) Queue(q int, frame []byte) error {
	r := g.rings[q]
	if len(r.free) == 0 {
		return fmt.Errorf("scripted: ring %d is full", q)
	}
	at, hdr := g.Mem.Buffer(q, int(r.free[len(r.free)-1])), g.HeaderSize()
	b := g.Mem.At(at, hdr+len(frame))
	clear(b[:hdr])
	copy(b[hdr:], frame)
	_, err := r.Add(Seg{Addr: at, Len: uint32(len(b))})
	r.Publish()
	return err
}

// Transmit sends frames on ring q, one after the other, each until it is used.
func (g *Guest) Transmit(q int, frames ...[]byte) {
	g.tb.Helper()
	r := g.Ring(q)
	for _, f := range frames {
		g.Must(g.Queue(q, f))
		g.Must(r.Notify())
		_, n, err := r.Wait()
		g.Must(err)
		if n != 0 {
			g.tb.Fatalf("ring %d: %d bytes are said to be written into a frame to be sent", q, n)
		}
	}
}

// Post posts n buffers on receive ring q and kicks.
func (g *Guest) Post(q, n int) {
	g.tb.Helper()
	g.Must(g.PostQuietly(q, n))
	g.Must(g.rings[q].Notify())
}

// PostQuietly posts n buffers on receive ring q.
func (g *Guest) PostQuietly(q, n int) error {
	r := g.rings[q]
	for range n {
		if len(r.free) == 0 {
			return fmt.Errorf("scripted: ring %d is full", q)
		}
		at := g.Mem.Buffer(q, int(r.free[len(r.free)-1]))
		if _, err := r.Add(Seg{Addr: at, Len: BufferSize, Write: true}); err != nil {
			return err
		}
	}
	r.Publish()
	return nil
}

// Receive returns the next frame on ring q, which has to fit one buffer. A buffer
// is posted if there is none.
func (g *Guest) Receive(q int) (virtio.NetHeader, []byte) {
	g.tb.Helper()
	if g.Ring(q).Outstanding() == 0 {
		g.Post(q, 1)
	}
	h, f, err := g.TryReceive(q)
	g.Must(err)
	return h, f
}

// TryReceive waits for the next frame on ring q.
func (g *Guest) TryReceive(q int) (h virtio.NetHeader, frame []byte, err error) {
	head, n, err := g.rings[q].Wait()
	if err != nil {
		return h, nil, err
	}
	hdr := g.HeaderSize()
	if int(n) < hdr || n > BufferSize {
		return h, nil, fmt.Errorf("scripted: ring %d: %d bytes written into a buffer of %d", q, n, BufferSize)
	}
	b := g.Mem.At(g.Mem.Buffer(q, int(head)), int(n))
	h.Decode(b[:hdr])
	if hdr >= virtio.NetHeaderLen && h.NumBuffers != 1 {
		return h, nil, fmt.Errorf("scripted: ring %d: a frame in one buffer has num_buffers %d", q, h.NumBuffers)
	}
	return h, append([]byte(nil), b[hdr:]...), nil
}

// Until polls until cond is true, and ends the test if that never happens.
func Until(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(Hang); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("%v: %s", ErrHang, what)
		}
	}
}
