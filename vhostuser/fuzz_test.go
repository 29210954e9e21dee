package vhostuser

import (
	"errors"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
)

func FuzzDecodeHeader(f *testing.F) {
	for _, h := range []Header{{ReqGetFeatures, 1, 0}, {ReqSetMemTable, 9, 264}, {0xffffffff, 5, MaxPayload}, {5, 1, 0xffffffff}, {8, 0, 8}} {
		b := make([]byte, HeaderSize)
		h.Encode(b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < HeaderSize {
			return
		}
		h, err := DecodeHeader(b)
		good := ne.Uint32(b[4:])&3 == 1 && ne.Uint32(b[8:]) <= MaxPayload
		if (err == nil) != good || err != nil && !errors.Is(err, ErrProtocol) {
			t.Errorf("% x: %+v, %v", b[:HeaderSize], h, err)
		}
		out := make([]byte, HeaderSize)
		if h.Encode(out); string(out) != string(b[:HeaderSize]) {
			t.Errorf("% x decodes to %+v, which is % x", b[:HeaderSize], h, out)
		}
		_ = h.Request.String()
	})
}

// input reads a fuzz input; behind its end there are zeros.
type input []byte

func (in *input) byte() (b byte) {
	if len(*in) > 0 {
		b, *in = (*in)[0], (*in)[1:]
	}
	return b
}

func (in *input) u64() (v uint64) {
	for range 8 {
		v = v<<8 | uint64(in.byte())
	}
	return v
}

// pick returns one of vs, or for a choice beyond them a number from the input.
func (in *input) pick(vs ...uint64) uint64 {
	if i := int(in.byte()) % (len(vs) + 1); i < len(vs) {
		return vs[i]
	}
	return in.u64()
}

// payload makes a payload that a request could have, with numbers that matter.
func (in *input) payload(r Request) []byte {
	index := func() uint32 { return uint32(in.pick(0, 1, 2, 4, 5)) }
	switch r {
	case ReqSetVringNum:
		return u32s(index(), uint32(in.pick(64, 256, 32768, 0, 3)))
	case ReqSetVringBase, ReqGetVringBase, ReqSetVringEnable:
		return u32s(index(), uint32(in.pick(0, 1, 0xffff)))
	case ReqSetVringAddr:
		i := index()
		b := u32s(i, 0)
		for part := range uint64(3) {
			b = ne.AppendUint64(b, in.pick(uva+uint64(i)*0x10000+part*0x4000, uva+memSize-16, 0))
		}
		return append(b, u64(0)...)
	case ReqSetVringKick, ReqSetVringCall, ReqSetVringErr:
		return u64(in.pick(0, 1, 4, noFD, noFD|1))
	case ReqSetMemTable:
		n := uint32(in.pick(1, 2, 8, 0, 9))
		var rs []guestmem.Region
		for range min(n, 8) {
			rs = append(rs, in.region())
		}
		return table(n, rs...)
	case ReqAddMemReg, ReqRemMemReg:
		return appendRegion(u64(0), in.region())
	case ReqSetFeatures:
		return u64(in.pick(uint64(offer)|1<<30, uint64(offer), 1<<32, 1<<63))
	case ReqSetProtocolFeatures:
		return u64(in.pick(uint64(protoOffer), uint64(protoOffer&^ProtocolReplyAck), 0))
	case ReqGetConfig, ReqSetConfig:
		return configPayload(uint32(in.pick(0, 6, 255)), 0, make([]byte, in.byte()))
	}
	if row, known := requests[r]; known {
		b := make([]byte, row.min)
		for i := range b {
			b[i] = in.byte()
		}
		return b
	}
	return nil
}

func (in *input) region() guestmem.Region {
	k := uint64(in.byte() % 4)
	return region(in.pick(k<<32), in.pick(memSize, memSize/2, 0), in.pick(uva+k<<32), in.pick(0, 0x800, memSize/2))
}

// FuzzSession plays a sequence of messages against the fake. Whatever they are,
// the session does not panic; it answers each request exactly once if an answer
// is due, and ends when the sequence does, with no descriptor left.
func FuzzSession(f *testing.F) {
	step := func(r Request, more ...byte) []byte { return append([]byte{byte(r), 0}, more...) }
	join := func(steps ...[]byte) (out []byte) {
		for _, s := range steps {
			out = append(out, s...)
		}
		return out
	}
	f.Add([]byte{})
	hello := join(step(ReqGetFeatures), step(ReqSetProtocolFeatures, 0, 0), step(ReqSetFeatures, 0, 0),
		step(ReqSetMemTable, 1, 0, 0, 0, 0, 0, 0))
	start := join(step(ReqSetVringNum, 0, 1, 1), step(ReqSetVringAddr, 0, 1, 0, 0, 0), step(ReqSetVringKick, 1, 1),
		step(ReqSetVringCall, 1, 1), step(ReqSetVringEnable, 0, 1, 1))
	f.Add(hello)
	f.Add(join(hello, start))
	f.Add(join(hello, start, hello, start, step(ReqGetVringBase, 0, 1, 0), step(ReqResetDevice)))
	f.Add(join(hello, start, step(ReqResetOwner), step(ReqSetFeatures, 0, 2), start))
	f.Add(join(hello, step(ReqAddMemReg, 1, 1, 0, 0, 0, 0), step(ReqRemMemReg, 1, 1, 0, 0, 0, 0)))
	f.Add(join(step(ReqSetLogBase, 2), step(99, 3), step(ReqGetInflightFD), step(ReqSetBackendReqFD, 1)))
	for r := range Request(50) { // each message, with and without descriptors
		f.Add(join(hello, start, []byte{byte(r), 0, 0, 0, 1, 1, 0, 1}))
		f.Add(join(hello, []byte{byte(r), 2, 1, 1, 0, 0, 0, 0}))
	}
	f.Add([]byte{byte(ReqGetFeatures), 0x10, 0})
	f.Add([]byte{byte(ReqSetVringNum), 0x20, 2})

	f.Fuzz(func(t *testing.T, data []byte) {
		s := begin(t)
		file, event := s.file(memSize), s.event()
		in := input(data)
		acks := false
		for n := 0; n < 64 && len(in) > 0; n++ {
			r, how := Request(in.byte()%50), in.byte()
			fds := make([]int, int(in.byte())%10)
			for i := range fds {
				fds[i] = file
				if r == ReqSetVringKick || r == ReqSetVringCall || r == ReqSetVringErr {
					fds[i] = event
				}
			}
			h := Header{Request: r, Flags: FlagVersion}
			if how&1 == 0 {
				h.Flags |= FlagNeedReply
			}
			payload := in.payload(r)
			switch how >> 4 {
			case 1:
				h.Flags = uint32(in.byte())
			case 2:
				payload = append(payload, 0)
			case 3:
				payload = payload[:len(payload)/2]
			}
			h.Size = uint32(len(payload))
			if err := s.SendRaw(h, payload, fds); err != nil {
				t.Fatal(err) // a session that ends is noticed below
			}
			row, known := requests[r]
			if h.Flags&3 != FlagVersion || h.Flags&FlagReply != 0 || known && (len(payload) < row.min || len(payload) > row.max) {
				if err := s.end(); !errors.Is(err, ErrProtocol) {
					t.Errorf("%+v: %v", h, err)
				}
				return
			}
			p := ProtocolFeatures(0)
			if r == ReqSetProtocolFeatures {
				p = ProtocolFeatures(ne.Uint64(payload))
				if p&^protoOffer == 0 && len(fds) == 0 {
					acks = p&ProtocolReplyAck != 0
				}
			}
			if row.reply || acks && h.Flags&FlagNeedReply != 0 {
				s.expect(h, row.reply)
			}
			if how&2 != 0 {
				s.inStep()
			}
		}
		s.inStep()
		s.must(s.Close())
		if err := s.end(); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
			t.Error(err)
		}
	})
}

// expect reads the one reply that is due.
func (s *script) expect(h Header, own bool) {
	s.t.Helper()
	got, b, fds, err := s.RecvRaw(time.Now().Add(hangs))
	if err != nil {
		s.t.Fatalf("%+v: no reply: %v", h, err)
	}
	if got.Request != h.Request || got.Flags != FlagVersion|FlagReply || len(fds) != 0 || !own && len(b) != 8 {
		s.t.Fatalf("%+v: reply %+v, % x", h, got, b)
	}
}
