package builtin

import (
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

// ErrKind means that no port of that kind is built in.
var ErrKind = errors.New("unknown kind of built-in port")

// offloads are all there are, in both directions: nothing here looks into a
// frame, so that one with a partial checksum or unsegmented is as good as any.
const offloads = virtio.FeatureCSum | virtio.FeatureHostTSO4 | virtio.FeatureHostTSO6 |
	virtio.FeatureHostECN | virtio.FeatureHostUFO | virtio.FeatureHostUSO |
	virtio.FeatureGuestCSum | virtio.FeatureGuestTSO4 | virtio.FeatureGuestTSO6 |
	virtio.FeatureGuestECN | virtio.FeatureGuestUFO |
	virtio.FeatureGuestUSO4 | virtio.FeatureGuestUSO6

const (
	// MaxQueues is the most queues of a port: virtio's largest number of pairs.
	MaxQueues = 0x8000
	// ethHeader is the least that a frame has.
	ethHeader = 14
)

// Open makes the port of that kind ("null", "source", "echo") with 1 to
// [MaxQueues] queues. Only source takes an argument, the size of its frames in
// bytes; "" stands for [DefaultSize]. The error wraps [ErrKind] if there is no
// such kind.
func Open(kind, arg string, queues int) (port.Port, error) {
	size, err := parse(kind, arg)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "null":
		return Null(queues)
	case "echo":
		return Echo(queues)
	}
	return Source(queues, size)
}

// Check returns the error that Open would return for kind and arg.
func Check(kind, arg string) error {
	_, err := parse(kind, arg)
	return err
}

// parse checks kind and argument and returns the size of a source's frames.
func parse(kind, arg string) (size int, err error) {
	switch kind {
	case "null", "echo":
		if arg != "" {
			return 0, fmt.Errorf("builtin: open %s: takes no argument, has %q", kind, arg)
		}
		return 0, nil
	case "source":
		if arg == "" {
			return DefaultSize, nil
		}
		if size, err = strconv.Atoi(arg); err != nil {
			return 0, fmt.Errorf("builtin: open source: frame size: %w", err)
		}
		return size, checkSize(size)
	}
	return 0, fmt.Errorf("builtin: open %q: %w", kind, ErrKind)
}

// base is what the ports have in common.
type base struct {
	kind, name string
	queues     []port.PortQueue
}

func newBase(kind, name string, queues int, queue func(i int) port.PortQueue) (base, error) {
	if queues < 1 || queues > MaxQueues {
		return base{}, fmt.Errorf("builtin: open %s: %d queues: want 1 to %d", kind, queues, MaxQueues)
	}
	b := base{kind: kind, name: name, queues: make([]port.PortQueue, queues)}
	for i := range b.queues {
		b.queues[i] = queue(i)
	}
	return b, nil
}

func (b *base) Kind() string               { return b.kind }
func (b *base) String() string             { return b.name }
func (b *base) Queues() int                { return len(b.queues) }
func (b *base) Queue(i int) port.PortQueue { return b.queues[i] }
func (b *base) Offloads() virtio.Features  { return offloads }
func (b *base) Close() error               { return nil }

// header is the size of the virtio-net header that a port's queues share. It is
// set by Configure and read by the workers.
type header struct{ size atomic.Int32 }

func (h *header) Configure(hdrLen int, _ virtio.Features) error {
	if hdrLen != virtio.NetHeaderLenLegacy && hdrLen != virtio.NetHeaderLen && hdrLen != virtio.NetHeaderLenHash {
		return fmt.Errorf("builtin: configure: header of %d bytes is not supported", hdrLen)
	}
	h.size.Store(int32(hdrLen))
	return nil
}

// sink is the sending half of a queue that takes everything.
type sink struct{}

func (sink) FD() int                       { return -1 }
func (sink) Send([][]byte) error           { return nil }
func (sink) SendBurst(frames [][]byte) int { return len(frames) }
func (sink) ReadsFrames() bool             { return false }

// smallFrame is up to which length a frame is copied without a call.
const smallFrame = 128

// CopyFrame copies src to dst, which is at least as long. Small frames go in pieces
// of 16 bytes, the last of which may overlap the one before.
func CopyFrame(dst, src []byte) {
	n := len(src)
	if n > smallFrame || n < 16 || len(dst) < n {
		copy(dst, src)
		return
	}
	for i := 0; i+16 <= n; i += 16 {
		*(*[16]byte)(dst[i:]) = *(*[16]byte)(src[i:])
	}
	if n%16 != 0 {
		*(*[16]byte)(dst[n-16:]) = *(*[16]byte)(src[n-16:])
	}
}

// scatter copies a whole frame into bufs and returns its length, and
// port.ErrTruncated if it does not fit.
func scatter(bufs [][]byte, frame []byte) (int, error) {
	if len(bufs) > 0 && len(bufs[0]) >= len(frame) {
		return copy(bufs[0], frame), nil
	}
	rest := frame
	for _, b := range bufs {
		rest = rest[copy(b, rest):]
		if len(rest) == 0 {
			return len(frame), nil
		}
	}
	return len(frame), port.ErrTruncated
}
