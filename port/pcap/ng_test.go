package pcap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vhostnet/vhostnet/port"
)

// section is what a pcapng file is written with.
type section struct{ binary.AppendByteOrder }

var little, big = section{binary.LittleEndian}, section{binary.BigEndian}

func (s section) block(kind uint32, body []byte) []byte {
	for len(body)%4 != 0 {
		body = append(body, 0xEE)
	}
	n := uint32(len(body) + blockMin)
	return s.AppendUint32(append(s.AppendUint32(s.AppendUint32(nil, kind), n), body...), n)
}

func (s section) words(vs ...uint32) (b []byte) {
	for _, v := range vs {
		b = s.AppendUint32(b, v)
	}
	return b
}

// begin has an option behind its fixed part.
func (s section) begin() []byte {
	b := s.AppendUint16(s.words(orderMagic), 1)
	b = s.AppendUint16(b, 0)
	return s.block(blockSection, append(b, bytes.Repeat([]byte{0xFF}, 8+12)...))
}

func (s section) iface(link uint16, snap uint32) []byte {
	return s.block(blockInterface, append(s.AppendUint16(s.AppendUint16(nil, link), 0), s.words(snap, 0)...))
}

func (s section) enhanced(iface uint32, f []byte, was int) []byte {
	return s.block(blockEnhanced, append(s.words(iface, 1, 2, uint32(len(f)), uint32(was)), f...))
}

func (s section) obsolete(iface uint16, f []byte) []byte {
	b := s.AppendUint16(s.AppendUint16(nil, iface), 7)
	return s.block(blockPacket, append(append(b, s.words(1, 2, uint32(len(f)), uint32(len(f)))...), f...))
}

func (s section) simple(f []byte, was int) []byte {
	return s.block(blockSimple, append(s.words(uint32(was)), f...))
}

// sample is a file of two sections in different orders, with all that is read and
// some that is not, of which one has so many bytes; so has the longest frame.
func sample(unknown, long int) []byte {
	return slice(
		little.begin(), little.block(0x80000001, nil), little.iface(linkEthernet, 100), little.iface(113, 0),
		little.enhanced(0, frame(61, 1), 61), little.enhanced(1, frame(80, 2), 80), little.block(4, make([]byte, unknown)),
		little.simple(frame(62, 3), 62), little.simple(frame(100, 4), 2000), little.enhanced(0, frame(60, 5), 99), little.enhanced(0, frame(13, 6), 13),
		big.begin(), big.iface(113, 0), big.iface(linkEthernet, 0), big.obsolete(1, frame(1514, 7)), big.obsolete(0, frame(70, 8)),
		big.enhanced(1, frame(long, 9), long), big.block(5, []byte("statistics")),
	)
}

func slice(blocks ...[]byte) []byte { return bytes.Join(blocks, nil) }

// TestNG: the frames of all Ethernet interfaces, whatever else is there.
func TestNG(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.pcapng")
	if err := os.WriteFile(name, sample(300_000, maxFrame), 0o600); err != nil {
		t.Fatal(err)
	}
	p := open(t, "replay="+name+",loop", 1)
	want := [][]byte{frame(61, 1), frame(62, 3), nil, nil, nil, frame(1514, 7), frame(maxFrame, 9)}
	for round := range 3 {
		for i, f := range want {
			got, err := recv(p.Queue(0), 12)
			if !bytes.Equal(got, f) || (f == nil) != errors.Is(err, port.ErrDropped) {
				t.Fatalf("round %d, frame %d: %d bytes, %v", round, i, len(got), err)
			}
		}
	}
	if c := p.Counters(); c["replayed"] != 12 || c["replay_cut"] != 6 || c["replay_bad"] != 9 || c["replay_loops"] != 2 || p.Err() != nil {
		t.Error(c, p.Err())
	}
	room := [][]byte{make([]byte, 70000)}
	q := p.Queue(0)
	if n := testing.AllocsPerRun(50, func() { _, _ = q.Recv(room) }); n != 0 { // some are dropped
		t.Errorf("%v allocations", n)
	}
}

// Files that are not what they say end the replay, at the open or where it is seen.
func TestNGRefused(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a")
	try := func(b []byte) (*Port, error) {
		t.Helper()
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return Open(Options{Replay: name}, 1)
	}
	head := little.begin()
	magic, version := bytes.Clone(head), bytes.Clone(head)
	magic[8], version[12] = 0, 2
	for what, b := range map[string][]byte{"magic": magic, "version": version, "cut": head[:15]} {
		if _, err := try(b); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", what, err)
		}
	}
	size := func(b []byte, n uint32) []byte {
		b = bytes.Clone(b)
		binary.LittleEndian.PutUint32(b[4:], n)
		return b
	}
	eth, f := little.iface(linkEthernet, 0), frame(60, 1)
	long := little.enhanced(0, f, 60)
	binary.LittleEndian.PutUint32(long[20:], 61+3)
	for want, b := range map[string][]byte{
		"a block of 8 bytes":                  size(little.block(77, nil), 8),
		"a block of 13 bytes":                 size(little.block(77, make([]byte, 4)), 13),
		"a block of 0 bytes":                  size(little.block(77, nil), 0),
		"a block of 28 bytes":                 slice(eth, size(little.enhanced(0, f, 60), 28)),
		"a section before":                    slice(magic),
		"a packet of interface 0, of 0":       little.enhanced(0, f, 60),
		"a packet of interface 1, of 1":       slice(eth, little.enhanced(1, f, 60)),
		"a packet of interface 0, of 0, befo": slice(eth, little.begin(), little.simple(f, 60)),
		"a packet of 64 bytes in a block":     slice(eth, long),
		"a record of 262148 bytes":            slice(eth, little.enhanced(0, make([]byte, maxSnap+4), maxSnap+4)),
		"more than 256 interfaces":            bytes.Repeat(eth, 257),
	} {
		p, err := try(slice(head, b, little.iface(linkEthernet, 0), little.enhanced(0, f, 60)))
		if err != nil {
			t.Fatal(want, err)
		}
		for err == nil || errors.Is(err, port.ErrDropped) {
			var got []byte
			if got, err = recv(p.Queue(0), 12); err == nil {
				t.Errorf("%s: %d bytes are replayed", want, len(got))
			}
		}
		if err := p.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	// Blocks without frames, more than are read in one go, and a file that ends early.
	p, err := try(slice(head, eth, bytes.Repeat(little.block(77, nil), 3*maxBlocks), little.enhanced(0, f, 60), little.enhanced(0, f, 60)[:70]))
	if err != nil {
		t.Fatal(err)
	}
	pauses := 0
	for {
		got, err := recv(p.Queue(0), 12)
		if errors.Is(err, port.ErrDropped) {
			pauses++
			continue
		}
		if err != nil || !bytes.Equal(got, f) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		break
	}
	if _, err := recv(p.Queue(0), 12); !errors.Is(err, port.ErrWouldBlock) || pauses != 3 || p.Counters()["replay_truncated"] != 1 {
		t.Errorf("%v, %d pauses, %v", err, pauses, p.Counters())
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
