package vhostuser

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// A front-end that comes as soon as the one before has hung up is served, not
// taken for a second one: one that was started anew may not try twice.
func TestReconnectAtOnce(t *testing.T) {
	s := run(t, Endpoint{Path: filepath.Join(t.TempDir(), "s")})
	for i := range 300 {
		f := s.dial()
		if _, err := f.GetFeatures(); err != nil {
			t.Fatalf("front-end %d: %v", i, err)
		}
		if i%3 == 0 { // the session ends first, and says so by closing
			if err := f.SendRaw(Header{ReqGetFeatures, 0, 0}, nil, nil); err != nil {
				t.Fatal(err)
			}
			if _, _, _, err := f.RecvRaw(time.Now().Add(hangs)); err == nil {
				t.Fatal("the session goes on")
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.c.Rejected.Load(); n != 0 {
		t.Errorf("%d turned away", n)
	}
}

// The server ends also while a front-end waits for the one before it to go.
func TestRunServerEndsWhileOneWaits(t *testing.T) {
	s := run(t, Endpoint{Path: filepath.Join(t.TempDir(), "s")})
	first := s.served()
	unlock := s.b.lock() // Disconnected does not return
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := s.dial()
	if err := second.SendRaw(Header{ReqGetFeatures, FlagVersion, 0}, nil, nil); err != nil {
		t.Fatal(err)
	}
	s.cancel()
	if _, _, _, err := second.RecvRaw(time.Now().Add(hangs)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Error("it is served, or kept:", err)
	}
	unlock()
	s.stop()
}

// L02: front-ends that leave anywhere in the protocol, also within a message,
// leave nothing behind.
func TestLeaveAnywhere(t *testing.T) {
	s := run(t, Endpoint{Path: filepath.Join(t.TempDir(), "s")})
	if err := s.served().Close(); err != nil {
		t.Fatal(err)
	}
	sc := &script{t: t}
	mem, event := sc.file(memSize), sc.event()
	steps := []func(f *Frontend) error{
		func(f *Frontend) error { return f.SetOwner() },
		func(f *Frontend) error { return f.SetProtocolFeatures(protoOffer) },
		func(f *Frontend) error { return f.SetFeatures(offer | virtio.FeatureProtocolFeatures) },
		func(f *Frontend) error { return f.SetMemTable([]guestmem.Region{region0}, []int{mem}) },
		func(f *Frontend) error { return f.SetVringNum(1, 64) },
		func(f *Frontend) error { return f.SetVringCall(1, event) },
		func(f *Frontend) error { return f.SetVringErr(1, event) },
		func(f *Frontend) error { return f.SetVringAddr(1, uva, uva+0x4000, uva+0x8000) },
		func(f *Frontend) error { return f.SetVringKick(1, event) },
		func(f *Frontend) error { return f.SetVringEnable(1, true) },
	}
	until(t, "the session is over", func() bool { defer s.b.lock()(); return !s.b.connected })
	before := openFDs(t)
	for range 400 {
		f := s.dial()
		for _, step := range steps[:rand.IntN(len(steps)+1)] {
			if err := step(f); err != nil {
				t.Fatal(err)
			}
		}
		if rand.IntN(2) == 0 {
			whole := encode(Header{ReqSetMemTable, FlagVersion, 40}, table(1, region0))
			if _, _, err := f.c.WriteMsgUnix(whole[:1+rand.IntN(len(whole))], unix.UnixRights(mem), nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "nothing is left", func() bool { return openFDs(t) == before && mappings(t) == 0 })
	if n := s.c.Rejected.Load(); n != 0 {
		t.Errorf("%d turned away", n)
	}
}
