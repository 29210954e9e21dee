package vhostuser

import (
	"bytes"
	"testing"

	"github.com/vhostnet/vhostnet/virtio"
)

// The cases of P10.

// (a) Whether GET_PROTOCOL_FEATURES was sent does not matter.
func TestReplyAckUnasked(t *testing.T) {
	s := begin(t)
	s.tell(ReqSetProtocolFeatures, FlagVersion, u64(uint64(ProtocolReplyAck)))
	s.accepted(ReqSetOwner, nil)
	s.inStep()
}

// own are requests that have a reply of their own.
var own = map[Request][]byte{
	ReqGetFeatures: nil, ReqGetProtocolFeatures: nil, ReqGetQueueNum: nil, ReqGetMaxMemSlots: nil, ReqGetStatus: nil,
	ReqGetVringBase: u32s(1, 0), ReqGetConfig: configPayload(0, 0, make([]byte, 8)),
}

// (b) Every request is answered exactly once, whether it is carried out or not.
func TestNeedReply(t *testing.T) {
	s := begin(t)
	s.hello()
	for r := range Request(100) {
		payload, isOwn := own[r]
		if !isOwn {
			// What is not supported has no size; the size of the others is right and
			// what they say is not.
			if row, known := requests[r]; known {
				payload = make([]byte, row.min)
				for i := range payload {
					payload[i] = 0xff
				}
			}
		}
		s.tell(r, FlagVersion|FlagNeedReply, payload)
		b := s.reply(r)
		if isOwn {
			// Its own reply, and not a confirmation in its place.
			s.tell(r, FlagVersion, payload)
			if plain := s.reply(r); !bytes.Equal(b, plain) {
				t.Errorf("%s: % x, and % x if a confirmation is asked for", r, plain, b)
			}
		}
		if !isOwn && len(b) != 8 {
			t.Errorf("%s: confirmation of %d bytes", r, len(b))
		} else if known := requests[r].do != nil; !known && ne.Uint64(b) == 0 {
			t.Errorf("%s: not refused", r)
		}
		s.inStep()
	}
}

// (c) Without REPLY_ACK nothing but the requests' own replies comes.
func TestNoReplyAck(t *testing.T) {
	s := begin(t)
	s.must(s.SetProtocolFeatures(protoOffer &^ ProtocolReplyAck))
	for range 3 {
		s.tell(ReqSetOwner, FlagVersion|FlagNeedReply, nil)
		s.tell(ReqSetVringNum, FlagVersion|FlagNeedReply, u32s(99, 0))
		s.tell(99, FlagVersion|FlagNeedReply, nil)
		s.inStep()
	}
}

// (d) A refusal is no end, and says so.
func TestRefusedThenGood(t *testing.T) {
	s := begin(t)
	s.hello()
	s.must(s.SetVringNum(0, 64))
	if err := s.SetVringAddr(0, 0x1000, 0x2000, 0x3000); !nacked(err) {
		t.Error(err)
	}
	s.must(s.addr(0))
	if n := s.c.Refused.Load(); n != 1 {
		t.Errorf("%d refusals counted", n)
	}
}

// (e) Nobody asks for confirmations.
func TestNoNeedReply(t *testing.T) {
	s := begin(t)
	s.hello()
	for r := range Request(100) {
		if row, known := requests[r]; known && !row.reply {
			s.tell(r, FlagVersion, make([]byte, row.min))
			s.inStep()
		}
	}
}

// What is confirmed is done.
func TestConfirmedIsDone(t *testing.T) {
	s := begin(t)
	s.hello()
	for range 100 {
		s.must(s.SetVringCall(2, s.event()))
		s.calls("SetRingCall 2 true")
		s.must(s.SetVringCall(2, -1))
		s.calls("SetRingCall 2 false")
	}
}

// What the back-end refuses is refused, and its descriptors are its own.
func TestBackendRefuses(t *testing.T) {
	s := begin(t)
	s.hello()
	s.start(1, 64)
	for name, f := range map[string]func() error{
		"SetFeatures": func() error { return s.SetFeatures(virtio.FeatureVersion1 | virtio.FeatureProtocolFeatures) },
		"SetMemory":   func() error { return s.SetMemTable(s.regions(1), []int{s.file(memSize)}) },
		"StartRing":   func() error { s.must(s.SetVringNum(0, 64)); s.must(s.addr(0)); return s.SetVringKick(0, s.event()) },
		"SetRingAddr": func() error { return s.addr(1) },
		"SetRingKick": func() error { return s.SetVringKick(1, s.event()) },
		"SetRingCall": func() error { return s.SetVringCall(1, s.event()) },
		"SetRingErr":  func() error { return s.SetVringErr(1, s.event()) },
		"EnableRing":  func() error { return s.SetVringEnable(2, true) },
		"SetConfig":   func() error { return s.SetConfig(0, 0, []byte{1}) },
		"GetConfig":   func() error { _, err := s.GetConfig(0, 4); return err },
		"SetStatus":   func() error { return s.SetStatus(4) },
		"SetMTU":      func() error { return s.SetMTU(1500) },
		"SendRARP":    func() error { return s.SendRARP([6]byte{2}) },
		"ResetDevice": func() error { return s.ResetDevice() },
	} {
		t.Run(name, func(t *testing.T) {
			if name == "SetRingAddr" || name == "SetRingKick" {
				s.restart(1)
			}
			s.b.failing(name, true)
			defer s.b.failing(name, false)
			if err := f(); !nacked(err) {
				t.Errorf("%v", err)
			}
			s.inStep()
		})
	}
}

// restart sees to it that ring i is started.
func (s *script) restart(i int) {
	s.t.Helper()
	_, err := s.GetVringBase(i)
	s.must(err)
	s.start(i, 64)
}

// What was refused is not taken for done when it is asked for again.
func TestEnableRefusedAgain(t *testing.T) {
	s := begin(t)
	s.hello()
	s.b.failing("EnableRing", true)
	for range 2 {
		if err := s.SetVringEnable(2, true); !nacked(err) {
			t.Error(err)
		}
	}
	s.b.failing("EnableRing", false)
	s.must(s.SetVringEnable(2, true))
}

// REPLY_ACK may be taken back: nobody waits for a confirmation then.
func TestReplyAckTakenBack(t *testing.T) {
	s := begin(t)
	s.must(s.SetProtocolFeatures(protoOffer))
	s.must(s.SetProtocolFeatures(protoOffer &^ ProtocolReplyAck))
	s.must(s.SetOwner())
	s.inStep()
	s.must(s.SetProtocolFeatures(protoOffer))
	if err := s.SetProtocolFeatures(protoOffer | 1<<63); !nacked(err) {
		t.Error(err)
	}
	s.must(s.SetOwner()) // still confirmed
	s.inStep()
}
