package vhostuser

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestHeader(t *testing.T) {
	want := Header{ReqSetMemTable, FlagVersion | FlagNeedReply, 264}
	var b [HeaderSize]byte
	want.Encode(b[:])
	if b != [HeaderSize]byte{5, 0, 0, 0, 9, 0, 0, 0, 8, 1, 0, 0} {
		t.Errorf("% x", b)
	}
	if got, err := DecodeHeader(b[:]); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []Header{
		{1, 0, 0},
		{1, 2, 0},
		{1, 3, 0},
		{1, FlagVersion, MaxPayload + 1},
		{5, FlagVersion, 0xffffffff},
	} {
		bad.Encode(b[:])
		if _, err := DecodeHeader(b[:]); !errors.Is(err, ErrProtocol) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestNames(t *testing.T) {
	if s := ReqSetVringKick.String(); s != "SET_VRING_KICK" {
		t.Error(s)
	}
	if s := Request(99).String(); s != "request 99" {
		t.Error(s)
	}
	f := ProtocolMQ | ProtocolReplyAck | 1<<60
	if s := f.String(); s != "MQ,REPLY_ACK,BIT_60" {
		t.Error(s)
	}
	if n := ProtocolFeatures(0).Names(); n == nil || len(n) != 0 {
		t.Errorf("%#v", n)
	}
	if s := ProtocolGetVringBaseSkipDrain.String(); s != "GET_VRING_BASE_SKIP_DRAIN" {
		t.Error(s)
	}
	for r := range requests {
		if strings.HasPrefix(r.String(), "request ") {
			t.Errorf("%v has no name", r)
		}
	}
}

// raw sends bytes, and descriptors with the first of them.
func (s *script) raw(b []byte, fds ...int) {
	s.t.Helper()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n, oobn, err := s.Frontend.conn.c.WriteMsgUnix(b, oob, nil)
	if err != nil || n != len(b) || oobn != len(oob) {
		s.t.Fatal(n, oobn, err)
	}
}

func encode(h Header, payload []byte) []byte {
	b := make([]byte, HeaderSize, HeaderSize+len(payload))
	h.Encode(b)
	return append(b, payload...)
}

// P02: however a message is cut, and whichever piece has the descriptor.
func TestPieces(t *testing.T) {
	whole := encode(Header{ReqSetMemTable, FlagVersion | FlagNeedReply, 40}, table(1, region0))
	for _, cuts := range [][]int{{12, 20}, {6, 12}, {6, 20}, {1, 2, 3, 51}, {11, 13}, {}} {
		for withFD := range len(cuts) + 1 {
			t.Run(fmt.Sprint(cuts, withFD), func(t *testing.T) {
				s := begin(t)
				s.must(s.SetProtocolFeatures(protoOffer))
				s.b.take()
				at := 0
				for i, to := range append(cuts[:len(cuts):len(cuts)], len(whole)) {
					if i == withFD {
						s.raw(whole[at:to], s.file(memSize))
					} else {
						s.raw(whole[at:to])
					}
					s.drained()
					at = to
				}
				if b := s.reply(ReqSetMemTable); ne.Uint64(b) != 0 {
					t.Error("refused")
				}
				s.calls("SetMemory 1")
			})
		}
	}
}

// drained waits until the session has read everything that was sent, so that the
// next piece cannot come with the last one.
func (s *script) drained() {
	s.t.Helper()
	raw, err := s.Frontend.conn.c.SyscallConn()
	s.must(err)
	for deadline := time.Now().Add(hangs); ; time.Sleep(50 * time.Microsecond) {
		left := 0
		s.must(raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) }))
		s.must(err)
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatal("nobody reads")
		}
	}
}

func TestGluedMessages(t *testing.T) {
	s := begin(t)
	s.hello()
	ack := uint32(FlagVersion | FlagNeedReply)
	b := encode(Header{ReqSetVringNum, ack, 8}, u32s(1, 64))
	b = append(b, encode(Header{ReqSetVringBase, ack, 8}, u32s(1, 7))...)
	b = append(b, encode(Header{ReqGetVringBase, FlagVersion, 8}, u32s(1, 0))...)
	s.raw(b)
	for _, r := range []Request{ReqSetVringNum, ReqSetVringBase} {
		if b := s.reply(r); ne.Uint64(b) != 0 {
			t.Errorf("%s refused", r)
		}
	}
	if b := s.reply(ReqGetVringBase); string(b) != string(u32s(1, 7)) {
		t.Errorf("% x", b)
	}
}

// P01: what cannot be a message ends the session, and nothing waits for the rest.
func TestFraming(t *testing.T) {
	for name, send := range map[string]func(s *script){
		"payload of 64 KiB with descriptors": func(s *script) {
			s.raw(encode(Header{ReqSetVringNum, FlagVersion, 0x10000}, nil), s.file(1), s.file(1))
		},
		"payload of 4 GiB":  func(s *script) { s.raw(encode(Header{ReqSetMemTable, FlagVersion, 0xffffffff}, nil)) },
		"version 0":         func(s *script) { s.raw(encode(Header{ReqGetFeatures, 0, 0}, nil), s.file(1)) },
		"version 2":         func(s *script) { s.raw(encode(Header{ReqGetFeatures, 2, 0}, nil)) },
		"a reply":           func(s *script) { s.raw(encode(Header{ReqGetFeatures, FlagVersion | FlagReply, 8}, u64(0))) },
		"4 bytes too short": func(s *script) { s.raw(encode(Header{ReqSetVringNum, FlagVersion, 4}, u32s(0)), s.file(1)) },
		"4 bytes too long":  func(s *script) { s.raw(encode(Header{ReqSetVringNum, FlagVersion, 12}, u32s(0, 0, 0))) },
		"253 descriptors":   func(s *script) { s.raw(encode(Header{ReqGetFeatures, FlagVersion, 0}, nil), s.files(253)...) },
		"end in the header": func(s *script) { s.raw([]byte{1, 0, 0, 0, 1}, s.file(1)); s.must(s.Frontend.conn.c.CloseWrite()) },
		"end in the payload": func(s *script) {
			s.raw(encode(Header{ReqSetFeatures, FlagVersion, 8}, u32s(1)), s.file(1))
			s.must(s.Frontend.conn.c.CloseWrite())
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t)
			send(s)
			if err := s.end(); !errors.Is(err, ErrProtocol) {
				t.Error(err)
			}
			if n := s.c.ProtocolErrors.Load(); n != 1 {
				t.Errorf("%d protocol errors counted", n)
			}
			if by := s.c.ByReason(); len(by) != 1 || by["other"] != 0 {
				t.Errorf("counted as %v", by)
			}
			if calls := s.b.take(); len(calls) != 0 {
				t.Errorf("the back-end was told %q", calls)
			}
		})
	}
}

func (s *script) files(n int) (fds []int) {
	fd := s.file(1)
	for range n {
		fds = append(fds, fd)
	}
	return fds
}

// A front-end that hangs up between messages is no error.
func TestHangUp(t *testing.T) {
	s := begin(t)
	s.hello()
	s.start(0, 64)
	s.must(s.Close())
	if err := s.end(); err != nil {
		t.Error(err)
	}
	s.calls("StartRing 0 size 64 base 0", "StopRing 0")
	if n := s.c.ProtocolErrors.Load(); n != 0 {
		t.Errorf("%d protocol errors counted", n)
	}
}

// P03: descriptors that no request asked for are closed.
func TestSurplusDescriptors(t *testing.T) {
	s := begin(t)
	s.hello()
	before := openFDs(t)
	eight := s.files(8)
	for range 1000 {
		s.tell(ReqGetFeatures, FlagVersion, nil, eight...)
		if v := ne.Uint64(s.reply(ReqGetFeatures)); v == 0 {
			t.Fatal("no features")
		}
	}
	s.refused(ReqSetVringCall, u64(0), s.files(3)...)
	s.refused(ReqSetVringNum, u32s(0, 64), s.files(1)...)
	two := []int{s.file(memSize), s.file(memSize)}
	s.refused(ReqSetMemTable, table(1, region0), two...)
	high := region0
	high.GuestAddr, high.UserAddr = 1<<32, uva+1<<32
	s.refused(ReqSetMemTable, table(2, region0, high), two[0])
	s.refused(ReqSetMemTable, table(1, region0), s.files(9)...)
	s.inStep()
	s.calls() // nothing of it has reached the back-end
	if n := s.c.SurplusFDs.Load(); n < 8000 {
		t.Errorf("%d surplus descriptors counted", n)
	}
	// The test's own: files, six calls of them.
	if after := openFDs(t); after > before+6 {
		t.Errorf("%d descriptors, had %d", after, before)
	}
}

// Descriptors are closed on exec and do not block.
func TestDescriptorFlags(t *testing.T) {
	s := begin(t)
	s.hello()
	s.must(s.SetVringCall(1, s.event()))
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	fd := uintptr(s.b.rings[1].call)
	if f, err := unix.FcntlInt(fd, unix.F_GETFD, 0); err != nil || f&unix.FD_CLOEXEC == 0 {
		t.Errorf("%#x, %v: not closed on exec", f, err)
	}
	if f, err := unix.FcntlInt(fd, unix.F_GETFL, 0); err != nil || f&unix.O_NONBLOCK == 0 {
		t.Errorf("%#x, %v: blocks", f, err)
	}
}

// P01, P03: a message in pieces may not bring descriptors with each of them: one
// that is never finished would keep them.
func TestDescriptorsInPieces(t *testing.T) {
	s := begin(t)
	s.hello()
	before := openFDs(t)
	fds := s.files(fdRoom)
	b := encode(Header{ReqGetFeatures, FlagVersion, 1000}, make([]byte, 1000))
	s.raw(b[:1], fds...)
	s.drained()
	if n := openFDs(t) - before; n > fdRoom+1 {
		t.Errorf("%d descriptors more", n)
	}
	s.raw(b[1:2], fds[0])
	if _, _, _, err := s.RecvRaw(time.Now().Add(hangs)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the session goes on:", err)
	}
	if err := s.end(); !errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
	if n := s.c.ByReason()["descriptors"]; n != 1 {
		t.Errorf("counted as %v", s.c.ByReason())
	}
}
