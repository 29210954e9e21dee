package builtin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

func must(t testing.TB, kind, arg string, queues int) port.Port {
	t.Helper()
	p, err := Open(kind, arg, queues)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func configure(t testing.TB, p port.Port, hdrLen int) {
	t.Helper()
	if err := p.(port.Configurer).Configure(hdrLen, 0); err != nil {
		t.Fatal(err)
	}
}

// split cuts b into pieces of n bytes.
func split(b []byte, n int) [][]byte { return slices.Collect(slices.Chunk(b, n)) }

func TestOpen(t *testing.T) {
	for _, tt := range []struct {
		kind, arg string
		queues    int
		name      string // "" if it must fail
	}{
		{"null", "", 1, "null"},
		{"echo", "", 4, "echo"},
		{"source", "", 2, "source:60"},
		{"source", "1514", 1, "source:1514"},
		{"source", "65549", 1, "source:65549"},
		{"source", "59", 1, ""},
		{"source", "65550", 1, ""},
		{"source", "-60", 1, ""},
		{"source", "many", 1, ""},
		{"null", "1", 1, ""},
		{"echo", "60", 1, ""},
		{"echo", "", 0, ""},
		{"null", "", -1, ""},
		{"source", "", MaxQueues + 1, ""},
		{"tap", "vn0", 1, ""},
		{"", "", 1, ""},
	} {
		p, err := Open(tt.kind, tt.arg, tt.queues)
		if (err != nil) != (tt.name == "") {
			t.Errorf("Open(%q, %q, %d): %v", tt.kind, tt.arg, tt.queues, err)
		}
		if err != nil {
			known := tt.kind == "null" || tt.kind == "echo" || tt.kind == "source"
			if errors.Is(err, ErrKind) == known {
				t.Errorf("Open(%q, %q, %d): %v", tt.kind, tt.arg, tt.queues, err)
			}
			continue
		}
		if p.Kind() != tt.kind || p.String() != tt.name || p.Queues() != tt.queues {
			t.Errorf("Open(%q, %q, %d): kind %q, name %q, %d queues", tt.kind, tt.arg, tt.queues, p.Kind(), p, p.Queues())
		}
		if !p.Offloads().Has(virtio.FeatureCSum | virtio.FeatureGuestTSO4 | virtio.FeatureHostUSO) {
			t.Errorf("%v: offloads %#x", p, uint64(p.Offloads()))
		}
		for i := range p.Queues() {
			if p.Queue(i).FD() != -1 {
				t.Errorf("%v: something to poll", p)
			}
		}
		if c, ok := p.(port.Configurer); ok && c.Configure(16, 0) == nil {
			t.Errorf("%v: takes a header of 16 bytes", p)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestNull(t *testing.T) {
	q := must(t, "null", "", 1).Queue(0)
	for range 10000 {
		if err := q.Send([][]byte{make([]byte, 72), nil}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := q.Recv([][]byte{make([]byte, 2000)}); !errors.Is(err, port.ErrWouldBlock) {
		t.Error(err)
	}
}

func TestSource(t *testing.T) {
	for _, size := range []int{MinSize, 61, 1514, MaxSize} {
		p := must(t, "source", fmt.Sprint(size), 2)
		for _, hdr := range []int{12, 10} {
			configure(t, p, hdr)
			for i := range 2 {
				q := p.Queue(i)
				var first uint64
				for n := range 20 {
					buf := bytes.Repeat([]byte{0xEE}, hdr+size+5)
					got, err := q.Recv(split(buf, 1+n*7))
					if err != nil || got != hdr+size {
						t.Fatalf("%v: %d, %v", p, got, err)
					}
					f := buf[hdr:got]
					seq := binary.BigEndian.Uint64(f[SeqOffset:])
					if n == 0 {
						first = seq
					}
					switch {
					case !bytes.Equal(buf[:hdr], make([]byte, hdr)):
						t.Fatalf("%v: header % x", p, buf[:hdr])
					case [6]byte(f) != DestMAC, [6]byte(f[6:]) != SourceMAC, binary.BigEndian.Uint16(f[12:]) != EtherType:
						t.Fatalf("%v: Ethernet header % x", p, f[:14])
					case seq != first+uint64(n), int(binary.BigEndian.Uint16(f[QueueOffset:])) != i:
						t.Fatalf("%v: frame %d of queue %d is numbered % x", p, n, i, f[SeqOffset:fillOffset])
					case !bytes.Equal(buf[got:], bytes.Repeat([]byte{0xEE}, 5)):
						t.Fatalf("%v: wrote behind the frame", p)
					}
				}
			}
		}
		q := p.Queue(0)
		if n, err := q.Recv(split(make([]byte, 10+size-1), 100)); n != 10+size || !errors.Is(err, port.ErrTruncated) {
			t.Errorf("%v: does not fit: %d, %v", p, n, err)
		}
		if err := q.Send(nil); err != nil {
			t.Error(err)
		}
		if SourceMAC[0]&1 != 0 || DestMAC[0]&1 != 0 {
			t.Error("a MAC address is a group's")
		}
	}
}

func TestEcho(t *testing.T) {
	p := must(t, "echo", "", 2)
	for _, hdr := range []int{12, 10} {
		configure(t, p, hdr)
		for _, size := range []int{14, 60, 1514, 65535 + 14} {
			b := make([]byte, hdr+size)
			for i := range b {
				b[i] = byte(i*7 + 1)
			}
			want := bytes.Clone(b)
			copy(want[hdr:], b[hdr+6:hdr+12])
			copy(want[hdr+6:], b[hdr:hdr+6])
			for _, piece := range []int{len(b), 12, 70} {
				if err := p.Queue(1).Send(append(split(b, piece), nil)); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, hdr+size)
				if n, err := p.Queue(1).Recv(split(got, piece)); err != nil || n != len(want) || !bytes.Equal(got, want) {
					t.Fatalf("header %d, frame of %d: %d, %v", hdr, size, n, err)
				}
			}
		}
		for _, size := range []int{0, 1, hdr, hdr + 13, maxFrame + 1, 4 << 20} {
			if err := p.Queue(0).Send([][]byte{make([]byte, size)}); !errors.Is(err, port.ErrDropped) {
				t.Errorf("%d bytes: %v", size, err)
			}
		}
		for i := range 2 {
			if _, err := p.Queue(i).Recv([][]byte{make([]byte, 100)}); !errors.Is(err, port.ErrWouldBlock) {
				t.Errorf("queue %d: %v", i, err)
			}
		}
	}
}

// A queue holds at least a whole ring of small frames and several of 64 KiB; when
// it is full, the frame is the caller's, and nothing is lost.
func TestEchoFull(t *testing.T) {
	for _, tt := range []struct{ size, least int }{{72, 1024}, {1526, 256}, {maxFrame, 4}} {
		p := must(t, "echo", "", 1)
		q := p.Queue(0)
		b, in := make([]byte, tt.size), [][]byte{make([]byte, tt.size)}
		sent, got := uint32(0), uint32(0)
		put := func() error {
			binary.BigEndian.PutUint32(b[26:], sent)
			err := q.Send([][]byte{b})
			if err == nil {
				sent++
			}
			return err
		}
		take := func() {
			t.Helper()
			if n, err := q.Recv(in); err != nil || n != tt.size || binary.BigEndian.Uint32(in[0][26:]) != got {
				t.Fatalf("%d bytes: frame %d: %d, %v, % x", tt.size, got, n, err, in[0][:32])
			}
			got++
		}
		for range 5 {
			for put() == nil {
			}
			if err := put(); !errors.Is(err, port.ErrWouldBlock) {
				t.Fatalf("%d bytes: %v", tt.size, err)
			}
			if int(sent-got) < tt.least {
				t.Errorf("%d bytes: holds %d", tt.size, sent-got)
			}
			take()
			if err := put(); err != nil {
				t.Errorf("%d bytes: no room for the place of one: %v", tt.size, err)
			}
			for range (sent - got) / 2 {
				take()
			}
		}
		for got < sent {
			take()
		}
		if err := put(); err != nil {
			t.Fatal(err)
		}
		if err := p.(port.Configurer).Reset(); err != nil {
			t.Fatal(err)
		}
		if _, err := q.Recv(in); !errors.Is(err, port.ErrWouldBlock) {
			t.Errorf("a frame outlives a reset: %v", err)
		}
	}
}

// Against a plain queue of frames: whatever the order and the sizes, what comes
// out is what went in.
func TestEchoModel(t *testing.T) {
	noise := make([]byte, maxFrame+100)
	for i := range noise {
		noise[i] = byte(i * i >> 3)
	}
	rapid.Check(t, func(rt *rapid.T) {
		p := must(t, "echo", "", 1)
		q := p.Queue(0)
		var model [][]byte
		bytesIn := 0
		buf := make([]byte, maxFrame)
		size := rapid.OneOf(rapid.IntRange(26, 200), rapid.IntRange(26, maxFrame), rapid.Just(maxFrame))
		steps := rapid.IntRange(1, 60).Draw(rt, "steps")
		for i := range steps {
			op := rapid.IntRange(0, 5).Draw(rt, "op")
			if op == 4 {
				frame := noise[i:][:rapid.IntRange(14, 300).Draw(rt, "frame")]
				frames := slices.Repeat([][]byte{frame}, rapid.IntRange(1, 9).Draw(rt, "frames"))
				n := q.(port.BurstQueue).SendBurst(frames)
				if n != len(frames) && bytesIn+2*maxFrame <= echoBytes && len(model)+9 <= echoFrames {
					rt.Fatalf("took %d of %d frames beside %d bytes", n, len(frames), bytesIn)
				}
				w := slices.Concat(make([]byte, 12), frame[6:12], frame[:6], frame[12:])
				model = append(model, slices.Repeat([][]byte{w}, n)...)
				bytesIn += n * len(w)
				continue
			}
			if op == 5 {
				room := rapid.SampledFrom([]int{20, 100, maxFrame}).Draw(rt, "room")
				bufs := [][]byte{make([]byte, room), make([]byte, room), make([]byte, room)}
				var lens [3]uint32
				n, more := q.(port.BurstQueue).RecvBurst(bufs, 12, lens[:])
				if n > len(model) || more != (n < len(model)) {
					rt.Fatalf("%d frames of %d, more %t", n, len(model), more)
				}
				for i := range n {
					w := model[i]
					if !bytes.Equal(w[:12], make([]byte, 12)) || int(lens[i]) != len(w) || !bytes.Equal(bufs[i][12:len(w)], w[12:]) {
						rt.Fatalf("frame %d of %d bytes: %d", i, len(w), lens[i])
					}
					bytesIn -= len(w)
				}
				model = model[n:]
				continue
			}
			if op > 1 {
				b := noise[i:][:size.Draw(rt, "size")]
				err := q.Send(split(b, rapid.IntRange(1, 70000).Draw(rt, "piece")))
				switch {
				case err == nil:
					w := bytes.Clone(b)
					copy(w[12:], b[18:24])
					copy(w[18:], b[12:18])
					model = append(model, w)
					bytesIn += len(w)
				case !errors.Is(err, port.ErrWouldBlock):
					rt.Fatal(err)
				case bytesIn+2*maxFrame <= echoBytes && len(model) < echoFrames:
					// The gap at the end of the buffer is shorter than a frame.
					rt.Fatalf("no room for %d bytes beside %d", len(b), bytesIn)
				}
				continue
			}
			room := rapid.SampledFrom([]int{maxFrame, maxFrame, maxFrame, 30}).Draw(rt, "room")
			n, err := q.Recv([][]byte{buf[:room]})
			if len(model) == 0 {
				if !errors.Is(err, port.ErrWouldBlock) {
					rt.Fatalf("empty: %d, %v", n, err)
				}
				continue
			}
			w := model[0]
			model = model[1:]
			bytesIn -= len(w)
			if n != len(w) || errors.Is(err, port.ErrTruncated) != (n > room) || err == nil && !bytes.Equal(buf[:n], w) {
				rt.Fatalf("frame of %d into %d: %d, %v", len(w), room, n, err)
			}
		}
	})
}

// A source's frames have the same numbers whichever way they are taken.
func TestSourceBurst(t *testing.T) {
	for _, size := range []int{60, 64, 127, 128, 129, 1514} {
		q := must(t, "source", strconv.Itoa(size), 1).Queue(0).(port.BurstQueue)
		bufs := [][]byte{make([]byte, size+12), make([]byte, size+100), make([]byte, size+11)}
		var lens [3]uint32
		bufs[1][3] = 7
		if n, more := q.RecvBurst(bufs, 12, lens[:]); n != 2 || !more || int(lens[1]) != size+12 || bufs[1][3] != 7 {
			t.Fatalf("%d frames, more %t, lengths %v", n, more, lens)
		}
		one := make([]byte, size+12)
		if n, err := q.Recv([][]byte{one}); n != size+12 || err != nil {
			t.Fatal(n, err)
		}
		for i, b := range [][]byte{bufs[0], bufs[1], one} {
			f := bytes.Clone(b[12 : size+12])
			if seq := binary.BigEndian.Uint64(f[SeqOffset:]); seq != uint64(i) {
				t.Errorf("frame %d has number %d", i, seq)
			}
			binary.BigEndian.PutUint64(f[SeqOffset:], 2)
			if !bytes.Equal(f, one[12:]) {
				t.Errorf("frame %d of %d bytes is another one", i, size)
			}
		}
		if n := q.SendBurst(bufs); n != 3 {
			t.Errorf("took %d frames", n)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	out, in := split(make([]byte, 72), 36), split(make([]byte, 2048), 128)
	lens := make([]uint32, len(in))
	for _, kind := range []string{"null", "source", "echo"} {
		q := must(t, kind, "", 1).Queue(0)
		n := testing.AllocsPerRun(6000, func() {
			for range 3 {
				// A third of it comes back: an echo is full soon.
				_ = q.Send(out)
			}
			_, _ = q.Recv(in)
			_ = q.(port.BurstQueue).SendBurst(out[:1])
			_, _ = q.(port.BurstQueue).RecvBurst(in, 12, lens)
		})
		if n != 0 {
			t.Errorf("%s: %v allocations", kind, n)
		}
	}
}

func BenchmarkSource(b *testing.B) {
	for _, size := range []int{60, 1514} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			q := must(b, "source", fmt.Sprint(size), 1).Queue(0)
			bufs := [][]byte{make([]byte, 1600)}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := q.Recv(bufs); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEcho(b *testing.B) {
	for _, size := range []int{60, 1514} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			q := must(b, "echo", "", 1).Queue(0)
			out, in := [][]byte{make([]byte, 12+size)}, [][]byte{make([]byte, 1600)}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				for range 32 {
					if err := q.Send(out); err != nil {
						b.Fatal(err)
					}
				}
				for range 32 {
					if _, err := q.Recv(in); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
