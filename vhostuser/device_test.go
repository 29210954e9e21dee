package vhostuser

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/virtio"
)

// P16: the configuration space.
func TestConfig(t *testing.T) {
	s := begin(t)
	s.hello()
	for _, c := range [][2]uint32{{6, 2}, {0, 60}, {0, 1}, {0, 256}, {255, 1}, {256, 0}} {
		b, err := s.GetConfig(c[0], c[1])
		if err != nil || len(b) != int(c[1]) || len(b) > 0 && b[0] != byte(c[0]) {
			t.Errorf("%v: % x, %v", c, b, err)
		}
	}
	for _, c := range [][2]uint32{{0xFFFFFFFF, 2}, {0, 257}, {255, 2}, {256, 1}} {
		if b, err := s.GetConfig(c[0], c[1]); !nacked(err) {
			t.Errorf("%v: % x, %v", c, b, err)
		}
	}
	// The size in the payload and the payload's size differ.
	for _, n := range []uint32{0, 7, 9, 0xffffffff} {
		p := append(u32s(0, n, 0), make([]byte, 8)...)
		s.tell(ReqGetConfig, FlagVersion|FlagNeedReply, p)
		if b := s.reply(ReqGetConfig); len(b) != 0 {
			t.Errorf("size %d: % x", n, b)
		}
		s.refused(ReqSetConfig, p)
	}
	s.b.take()
	s.must(s.SetConfig(0, 1, []byte{2, 3}))
	s.calls("SetConfig 0 1 02 03")
	b := configPayload(6, 0, make([]byte, 2))
	s.tell(ReqGetConfig, FlagVersion, b)
	if got := s.reply(ReqGetConfig); !bytes.Equal(got, append(u32s(6, 2, 0), 6, 7)) {
		t.Errorf("% x", got)
	}
}

func TestStatusMTUAndRARP(t *testing.T) {
	s := begin(t)
	s.hello()
	s.must(s.SetStatus(0xf))
	if v, err := s.GetStatus(); err != nil || v != 0xf {
		t.Error(v, err)
	}
	s.refused(ReqSetStatus, u64(0x100))
	s.must(s.SetMTU(9000))
	s.must(s.SendRARP([6]byte{2, 0, 0, 0, 0, 1}))
	s.calls("SetStatus 15", "SetMTU 9000", "SendRARP 020000000001")
}

func TestOffers(t *testing.T) {
	s := begin(t)
	if f, err := s.GetFeatures(); err != nil || f != offer|virtio.FeatureRingPacked|1<<30 {
		t.Errorf("%v, %v", f, err)
	}
	if f, err := s.GetProtocolFeatures(); err != nil || f != protoOffer {
		t.Errorf("%v, %v", f, err)
	}
	s.must(s.SetProtocolFeatures(protoOffer))
	s.refused(ReqSetProtocolFeatures, u64(1<<63|uint64(protoOffer)))
	s.inStep()
	s.calls()
	if n := s.c.ByRequest()["GET_FEATURES"]; n != 1 {
		t.Errorf("%d requests counted", n)
	}
	s.tell(0xfffffff0, FlagVersion, nil)
	s.inStep()
	if n := s.c.ByRequest()["unknown"]; n != 1 {
		t.Errorf("%d unknown requests counted", n)
	}
}

// Requests that need a protocol feature are refused without it; those with a reply
// of their own are answered all the same.
func TestUnnegotiated(t *testing.T) {
	s := begin(t)
	s.must(s.SetProtocolFeatures(ProtocolReplyAck))
	for r, row := range requests {
		if row.needs == 0 {
			continue
		}
		s.tell(r, FlagVersion|FlagNeedReply, make([]byte, row.min))
		if b := s.reply(r); !row.reply && ne.Uint64(b) == 0 {
			t.Errorf("%s: not refused", r)
		}
		s.inStep()
	}
	s.calls()
}

// channel gives the session a channel and returns the front-end's end.
func (s *script) channel() *net.UnixConn {
	s.t.Helper()
	near, far := pair(s.t)
	s.t.Cleanup(func() { _ = near.Close() })
	f, err := far.File()
	s.must(err)
	s.must(s.SetBackendReqFD(int(f.Fd())))
	s.must(f.Close())
	s.must(far.Close())
	return near
}

func (s *script) backendChannel() *BackendChannel {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	return s.b.channel
}

func TestConfigChanged(t *testing.T) {
	s := begin(t)
	s.hello()
	c := s.channel()
	ch := s.backendChannel()
	s.must(ch.ConfigChanged())
	h, b, _, err := NewFrontend(c).RecvRaw(time.Now().Add(hangs))
	if err != nil || h != (Header{BackendReqConfigChange, FlagVersion, 0}) || len(b) != 0 {
		t.Errorf("%+v, % x, %v", h, b, err)
	}
	s.must(s.Close())
	s.must(s.end())
	if err := ch.ConfigChanged(); !errors.Is(err, net.ErrClosed) {
		t.Error("after the session:", err)
	}
	s.calls("SetBackendChannel true", "SetBackendChannel false")
}

// A front-end that does not read its channel holds nothing up for good.
func TestConfigChangedUnread(t *testing.T) {
	s := begin(t)
	s.hello()
	s.channel()
	ch := s.backendChannel()
	for {
		if err := ch.ConfigChanged(); err != nil {
			var to interface{ Timeout() bool }
			if !errors.As(err, &to) || !to.Timeout() {
				t.Error(err)
			}
			break
		}
	}
	s.inStep()
}

// The context ends a session that waits for a front-end.
func TestContextEndsSession(t *testing.T) {
	near, far := pair(t)
	defer func() { _ = near.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	b := newFake()
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, far, b, Options{}) }()
	f := NewFrontend(near)
	if _, err := f.GetFeatures(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if b.connected {
		t.Error("the back-end is not told")
	}
}
