package pcap

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

// MaxQueues is the most queues of a port.
const MaxQueues = 256

// Options are what the notation of a port says.
type Options struct {
	// Record is the file that is written with what the guest sends, "" for none: then
	// that is dropped. What was in it before is lost.
	Record string
	// Replay is the file whose frames the guest receives, "" for none, on the first
	// queue, as fast as it takes them, from the start for each driver.
	Replay string
	// Loop replays without end.
	Loop bool
}

// Parse reads "record=FILE,replay=FILE,loop", of which loop needs replay, and at least
// one of the files must be there.
func Parse(text string) (o Options, err error) {
	for word := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(word, "=")
		switch {
		case key == "record" && value != "" && o.Record == "":
			o.Record = value
		case key == "replay" && value != "" && o.Replay == "":
			o.Replay = value
		case word == "loop" && !o.Loop:
			o.Loop = true
		default:
			return o, fmt.Errorf("pcap: %q: want record=FILE, replay=FILE, or both, and loop to replay without end", word)
		}
	}
	if o.Loop && o.Replay == "" || o.Record == "" && o.Replay == "" {
		return o, errors.New("pcap: nothing to record and nothing to replay")
	}
	return o, nil
}

// String returns the notation.
func (o Options) String() string {
	var words []string
	if o.Record != "" {
		words = append(words, "record="+o.Record)
	}
	if o.Replay != "" {
		words = append(words, "replay="+o.Replay)
	}
	if o.Loop {
		words = append(words, "loop")
	}
	return strings.Join(words, ",")
}

// What is counted, by each queue.
const (
	recorded        = iota
	recordLost      // the file could not be written
	replayed        // handed over
	replayBad       // shorter or longer than a frame can be, or no Ethernet frame
	replayCut       // not recorded whole
	replayTruncated // ends of the file within a record
	replayLoops
	numCounts
)

var countNames = [numCounts]string{"recorded", "record_lost", "replayed", "replay_bad", "replay_cut", "replay_truncated", "replay_loops"}

// count has one writer, the queue's worker.
type count struct{ v atomic.Uint64 }

func (c *count) add(n uint64) { c.v.Store(c.v.Load() + n) }

type counts [numCounts]count

var (
	errSize   = fmt.Errorf("pcap: frame is shorter than its header, or longer than any: %w", port.ErrDropped)
	errBlocks = fmt.Errorf("pcap: many blocks without a frame: %w", port.ErrDropped)
	errCut    = fmt.Errorf("pcap: frame was not captured whole: %w", port.ErrDropped)
)

// Port is capture files. Its methods may be called from any goroutine; those of one
// [port.PortQueue] from one at a time.
type Port struct {
	o      Options
	queues []*queue
	record *recorder
	replay *replayer
	files  []*os.File
	// hdr is the size of the driver's virtio-net header; fresh the control goroutine's.
	hdr   atomic.Int32
	fresh bool
}

var (
	_ port.Port       = (*Port)(nil)
	_ port.Configurer = (*Port)(nil)
	_ port.Counter    = (*Port)(nil)
	_ port.Health     = (*Port)(nil)
)

// Open opens the files, which must be regular ones; one that is to be replayed must be
// there and begin as such files do (otherwise the error wraps [ErrFormat]).
func Open(o Options, queues int) (*Port, error) {
	if queues < 1 || queues > MaxQueues {
		return nil, fmt.Errorf("pcap: %d queues: want 1 to %d", queues, MaxQueues)
	}
	p := &Port{o: o, fresh: true}
	p.hdr.Store(virtio.NetHeaderLen)
	for range queues {
		p.queues = append(p.queues, &queue{p: p})
	}
	if err := p.open(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Port) open() error {
	if p.o.Replay != "" {
		f, err := p.file(p.o.Replay, os.O_RDONLY)
		if err == nil {
			p.replay, err = newReplayer(p.o.Replay, f, p.o.Loop, &p.queues[0].c)
		}
		if err != nil {
			return fmt.Errorf("pcap: replay %s: %w", p.o.Replay, err)
		}
		p.queues[0].replay = p.replay
	}
	if p.o.Record != "" {
		f, err := p.file(p.o.Record, os.O_WRONLY|os.O_CREATE)
		if err == nil {
			err = f.Truncate(0)
		}
		p.record = &recorder{name: p.o.Record, f: f}
		if err == nil && !p.record.write(header()) {
			err = p.record.err()
		}
		if err != nil {
			return fmt.Errorf("pcap: record %s: %w", p.o.Record, err)
		}
		for _, q := range p.queues {
			q.out = &batch{r: p.record, buf: make([]byte, 0, recordRoom), c: &q.c}
		}
	}
	return nil
}

// file opens a regular file, not one that is open already.
func (p *Port) file(name string, flags int) (*os.File, error) {
	// Without O_NONBLOCK a FIFO would be waited for.
	f, err := os.OpenFile(name, flags|syscall.O_NONBLOCK, 0o640)
	if err != nil {
		return nil, err
	}
	p.files = append(p.files, f)
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	for _, other := range p.files[:len(p.files)-1] {
		if i, err := other.Stat(); err != nil || os.SameFile(i, info) {
			return nil, errors.Join(err, errors.New("the file to record to is the one to replay"))
		}
	}
	return f, nil
}

// Kind returns "pcap".
func (p *Port) Kind() string { return "pcap" }

// String returns the port's notation.
func (p *Port) String() string { return "pcap:" + p.o.String() }

// Queues returns how many queues there are.
func (p *Port) Queues() int { return len(p.queues) }

// Queue returns queue i, 0 to Queues()-1.
func (p *Port) Queue(i int) port.PortQueue { return p.queues[i] }

// Offloads returns none.
func (p *Port) Offloads() virtio.Features { return 0 }

// Configure implements [port.Configurer]. A new driver gets the capture from its start.
func (p *Port) Configure(hdrLen int, _ virtio.Features) error {
	if hdrLen != virtio.NetHeaderLenLegacy && hdrLen != virtio.NetHeaderLen {
		return fmt.Errorf("pcap: configure: header of %d bytes is not supported", hdrLen)
	}
	p.hdr.Store(int32(hdrLen))
	if p.fresh && p.replay != nil {
		p.replay.era.Add(1)
	}
	p.fresh = false
	return nil
}

// Reset implements [port.Configurer].
func (p *Port) Reset() error {
	p.fresh = true
	return nil
}

// Counters implements [port.Counter].
func (p *Port) Counters() map[string]uint64 {
	m := make(map[string]uint64, numCounts)
	for _, q := range p.queues {
		for i := range q.c {
			m[countNames[i]] += q.c[i].v.Load()
		}
	}
	return m
}

// Err tells what is the matter with a file: it cannot be written at present, or not be
// read any further.
func (p *Port) Err() error {
	var errs []error
	if p.record != nil {
		errs = append(errs, p.record.err())
	}
	if p.replay != nil {
		errs = append(errs, p.replay.err())
	}
	return errors.Join(errs...)
}

// Close closes the files. Everything that was sent has been written.
func (p *Port) Close() error {
	var errs []error
	for _, f := range p.files {
		errs = append(errs, f.Close())
	}
	p.files = nil
	return errors.Join(errs...)
}

// queue belongs to one worker.
type queue struct {
	p      *Port
	replay *replayer // nil for none
	out    *batch    // nil for none
	c      counts
}

var _ port.BatchQueue = (*queue)(nil)

// FD returns -1: a file is always ready.
func (q *queue) FD() int { return -1 }

// Readable does nothing.
func (q *queue) Readable() {}

// Recv hands over the capture's next frame.
func (q *queue) Recv(bufs [][]byte) (int, error) {
	if q.replay == nil {
		return 0, port.ErrWouldBlock
	}
	f, err := q.replay.frame()
	if err != nil {
		return 0, err
	}
	var zero [virtio.NetHeaderLen]byte
	hdr := zero[:q.p.hdr.Load()]
	n := len(hdr) + len(f)
	for _, b := range bufs {
		if len(hdr) > 0 {
			c := copy(b, hdr)
			hdr, b = hdr[c:], b[c:]
		}
		if f = f[copy(b, f):]; len(f) == 0 && len(hdr) == 0 {
			return n, nil
		}
	}
	return n, port.ErrTruncated
}

// Send records one frame.
func (q *queue) Send(bufs [][]byte) error {
	if q.out == nil {
		return nil
	}
	q.out.when = time.Now()
	err := q.out.add(bufs, int(q.p.hdr.Load()))
	q.out.flush()
	return err
}

// SendBatch records frames with one write. Those that the file has no room for are
// counted by the port: to the driver they are sent.
func (q *queue) SendBatch(frames [][][]byte, errs []error) {
	if q.out == nil {
		clear(errs[:len(frames)])
		return
	}
	q.out.when = time.Now()
	for i, f := range frames {
		errs[i] = q.out.add(f, int(q.p.hdr.Load()))
	}
	q.out.flush()
}
