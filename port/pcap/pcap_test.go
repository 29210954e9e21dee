package pcap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/vhostnet/vhostnet/port"
)

func open(t testing.TB, text string, queues int) *Port {
	t.Helper()
	o, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Open(o, queues)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func frame(n int, seq byte) []byte {
	f := bytes.Repeat([]byte{seq}, n)
	f[n-1] = ^seq
	return f
}

func recv(q port.PortQueue, hdr int) ([]byte, error) {
	b := bytes.Repeat([]byte{0xEE}, 70000)
	n, err := q.Recv([][]byte{b[:7], b[7:20], b[20:]})
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(b[:hdr], make([]byte, hdr)) {
		return nil, errors.New("the header is not zero")
	}
	return b[hdr:n], nil
}

// What is recorded is replayed byte for byte, once or in a loop, for each driver from
// the start, whatever the headers' size.
func TestRoundTrip(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.pcap")
	p := open(t, "record="+name, 2)
	var want [][]byte
	for i, n := range []int{14, 15, 60, 1514, 9000, maxFrame, 60} {
		for _, hdr := range []int{10, 12} {
			if err := p.Configure(hdr, 0); err != nil {
				t.Fatal(err)
			}
			f := frame(n, byte(i))
			whole := append(make([]byte, hdr), f...)
			if err := p.Queue(i % 2).Send([][]byte{whole[:5], whole[5:20], whole[20:]}); err != nil {
				t.Fatal(err)
			}
			want = append(want, f)
		}
	}
	var frames [][][]byte
	for i := range 64 {
		f := frame(8000, byte(i))
		want = append(want, f)
		frames = append(frames, [][]byte{make([]byte, 12), f})
	}
	errs := make([]error, 64)
	p.Queue(1).(port.BatchQueue).SendBatch(frames, errs)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if c := p.Counters(); c["recorded"] != uint64(len(want)) || c["record_lost"] != 0 || p.Err() != nil {
		t.Error(c, p.Err())
	}
	for _, size := range []int{12, 12 + 13, 12 + maxFrame + 1} {
		if err := p.Queue(0).Send([][]byte{make([]byte, size)}); !errors.Is(err, port.ErrDropped) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	once, loop := open(t, "replay="+name, 2), open(t, "replay="+name+",loop", 1)
	for round := range 3 {
		hdr := []int{10, 12, 12}[round]
		for _, p := range []*Port{once, loop} {
			if p == once {
				_ = p.Reset()
			}
			if err := p.Configure(hdr, 0); err != nil {
				t.Fatal(err)
			}
			for i, f := range want {
				if got, err := recv(p.Queue(0), hdr); err != nil || !bytes.Equal(got, f) {
					t.Fatalf("round %d: frame %d: %d bytes, %v", round, i, len(got), err)
				}
			}
		}
		for i := range 2 {
			if _, err := recv(once.Queue(i), hdr); !errors.Is(err, port.ErrWouldBlock) {
				t.Errorf("queue %d behind the end: %v", i, err)
			}
		}
	}
	if c := loop.Counters(); c["replay_loops"] != 2 || c["replayed"] != uint64(3*len(want)) {
		t.Error(c)
	}
	if _, err := loop.Queue(0).Recv([][]byte{make([]byte, 20)}); !errors.Is(err, port.ErrTruncated) {
		t.Errorf("no room: %v", err)
	}
}

// full is a file on a disk with room for so many bytes.
type full struct {
	b    []byte
	room int
}

func (f *full) WriteAt(b []byte, at int64) (int, error) {
	n := max(min(len(b), f.room-int(at)), 0)
	f.b = append(f.b[:at], b[:n]...)
	if n < len(b) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

func (f *full) Truncate(n int64) error { f.b = f.b[:n]; return nil }
func (f *full) Close() error           { return nil }

// A disk that is full costs records and nothing else, and the file stays one.
func TestFullDisk(t *testing.T) {
	p := open(t, "record="+filepath.Join(t.TempDir(), "a"), 1)
	disk := &full{b: header(), room: 1000}
	p.record.f = disk
	for i := range 20 {
		if err := p.Queue(0).Send([][]byte{make([]byte, 12), frame(100, byte(i))}); err != nil {
			t.Fatal(err)
		}
	}
	if c := p.Counters(); c["recorded"] != 8 || c["record_lost"] != 12 || p.Err() == nil {
		t.Error(c, p.Err())
	}
	disk.room = 1 << 20
	if err := p.Queue(0).Send([][]byte{make([]byte, 12), frame(100, 99)}); err != nil || p.Err() != nil {
		t.Error(err, p.Err())
	}
	name := filepath.Join(t.TempDir(), "b")
	if err := os.WriteFile(name, disk.b, 0o600); err != nil {
		t.Fatal(err)
	}
	q := open(t, "replay="+name, 1).Queue(0)
	for _, i := range []byte{0, 1, 2, 3, 4, 5, 6, 7, 99} {
		if got, err := recv(q, 12); err != nil || !bytes.Equal(got, frame(100, i)) {
			t.Fatalf("frame %d: %v", i, err)
		}
	}
}

func capture(o binary.AppendByteOrder, magic uint32, records ...[]byte) []byte {
	b := o.AppendUint32(nil, magic)
	b = o.AppendUint16(b, 2)
	b = append(b, make([]byte, 14)...)
	b = o.AppendUint32(b, linkEthernet)
	for _, r := range records {
		b = append(b, make([]byte, 8)...)
		b = o.AppendUint32(b, uint32(len(r)))
		b = append(o.AppendUint32(b, uint32(len(r))), r...)
	}
	return b
}

func TestFormats(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a")
	for _, o := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		for _, magic := range []uint32{magicMicro, magicNano} {
			if err := os.WriteFile(name, capture(o, magic, frame(60, 1), frame(10, 2), frame(maxFrame+1, 3), frame(61, 4)), 0o600); err != nil {
				t.Fatal(err)
			}
			p := open(t, "replay="+name, 1)
			for i, n := range []int{60, 0, 0, 61} {
				got, err := recv(p.Queue(0), 12)
				if len(got) != n || (n == 0) != errors.Is(err, port.ErrDropped) {
					t.Errorf("record %d: %d bytes, %v", i, len(got), err)
				}
			}
			if c := p.Counters(); c["replay_bad"] != 2 || c["replayed"] != 2 {
				t.Error(c)
			}
		}
	}
	good := capture(binary.LittleEndian, magicMicro)
	for what, b := range map[string][]byte{
		"empty": nil, "short": good[:23], "pcapng": append([]byte{10, 13, 13, 10}, good...), "magic": append([]byte{1}, good...),
		"version": append(append([]byte{}, good[:4]...), make([]byte, 20)...), "link": append(append([]byte{}, good[:20]...), 113, 0, 0, 0),
	} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Options{Replay: name}, 1); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, o := range map[string]Options{
		"missing": {Replay: name + "x"}, "directory": {Replay: filepath.Dir(name)}, "device": {Record: "/dev/null"},
	} {
		if _, err := Open(o, 1); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if err := os.WriteFile(name, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Replay: name, Record: name}, 1); err == nil {
		t.Error("the same file")
	}
	if b, err := os.ReadFile(name); err != nil || !bytes.Equal(b, good) {
		t.Error("the file to replay was written to")
	}
	for _, text := range []string{"", "record=", "loop", "replay", "record=a,loop", "record=a,record=b", "x=y", "record=a,"} {
		if o, err := Parse(text); err == nil {
			t.Errorf("%q: %+v", text, o)
		}
	}
	if o, err := Parse("record=a,replay=b,loop"); err != nil || o != (Options{"a", "b", true}) || o.String() != "record=a,replay=b,loop" {
		t.Error(o, err)
	}
}

// Whatever is in a file, frames come out of it that lie in it, in order, and then its
// end.
func FuzzReplay(f *testing.F) {
	good := capture(binary.LittleEndian, magicNano, frame(60, 1), frame(1514, 2))
	f.Add(good, false)
	f.Add(good, true)
	f.Add(good[:len(good)-1], true)
	f.Add(capture(binary.BigEndian, magicMicro, frame(13, 1)), true)
	huge := append([]byte{}, good...)
	huge[32], huge[33], huge[34], huge[35] = 0xff, 0xff, 0xff, 0xff
	f.Add(huge, true)
	cut := append([]byte{}, good...)
	cut[36] = 0xff
	f.Add(cut, false)
	f.Add(sample(40, 64), false)
	f.Add(sample(40, 64), true)
	f.Add(slice(big.begin(), big.iface(linkEthernet, 64), big.simple(frame(60, 1), 60), big.obsolete(0, frame(60, 2))), true)
	f.Fuzz(func(t *testing.T, b []byte, loop bool) {
		var c counts
		r, err := newReplayer("x", bytes.NewReader(b), loop, &c)
		if err != nil {
			return
		}
		rest := b
		for range 2 * len(b) {
			got, err := r.frame()
			if err == port.ErrWouldBlock {
				return
			}
			if c[replayLoops].v.Load() > 0 {
				if !loop {
					t.Fatal("it begins again")
				}
				return
			}
			if err == nil {
				at := bytes.Index(rest, got)
				if at < 0 || len(got) < ethHeader || len(got) > maxFrame {
					t.Fatalf("a frame of %d bytes that is not there", len(got))
				}
				rest = rest[at+len(got):]
			} else if !errors.Is(err, port.ErrDropped) {
				t.Fatal(err)
			}
		}
		t.Fatal("no end")
	})
}

func TestNoAllocations(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a")
	if err := os.WriteFile(name, capture(binary.LittleEndian, magicNano, frame(60, 1), frame(1514, 2)), 0o600); err != nil {
		t.Fatal(err)
	}
	p := open(t, "replay="+name+",loop,record="+filepath.Join(dir, "b"), 1)
	q, room := p.Queue(0).(port.BatchQueue), [][]byte{make([]byte, 2000)}
	frames, errs := [][][]byte{{make([]byte, 12), frame(60, 1)}, {make([]byte, 12), frame(1514, 1)}}, make([]error, 2)
	if n := testing.AllocsPerRun(100, func() {
		q.SendBatch(frames, errs)
		if _, err := q.Recv(room); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
