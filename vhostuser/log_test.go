package vhostuser

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

const (
	logFeatures = offer | virtio.FeatureProtocolFeatures
	// logSizeNeeded is for region0 and the used rings, which are in it.
	logSizeNeeded = memSize / guestmem.LogPage / 8
)

// beginLogged is a session in which LOG_SHMFD was negotiated.
func beginLogged(t *testing.T) *script {
	s := begin(t)
	s.b.mu.Lock()
	s.b.logs = true
	s.b.mu.Unlock()
	s.must(s.SetOwner())
	if f, err := s.GetFeatures(); err != nil || !f.Has(virtio.FeatureLogAll) {
		t.Fatal(f, err)
	}
	s.must(s.SetProtocolFeatures(protoOffer | ProtocolLogSHMFD))
	s.must(s.SetFeatures(logFeatures))
	s.must(s.SetMemTable([]guestmem.Region{region0}, []int{s.file(memSize)}))
	s.b.take()
	return s
}

// TestLogSwitch: logging comes and goes while rings run, in whatever order a
// front-end says it, and nothing else happens to them.
func TestLogSwitch(t *testing.T) {
	s := beginLogged(t)
	s.start(0, 64)
	s.must(s.SetVringEnable(0, true))
	file := s.file(0x3000)
	s.b.take()
	for range 50 {
		// As QEMU does when a migration starts and ends.
		s.must(s.SetLogBase(file, logSizeNeeded, 0))
		s.must(s.SetFeatures(logFeatures | virtio.FeatureLogAll))
		s.must(s.SetVringAddrLog(0, uva, uva+0x4000, uva+0x8000, 0x8000))
		s.must(s.SetLogBase(file, 0x1000, 0x2000)) // memory was plugged in
		s.must(s.SetFeatures(logFeatures))
		s.must(s.addr(0))
		s.inStep()
		s.calls("SetLog true", "SetRingAddr 0 0x7f5500000000", "SetLog true", "SetLog false", "SetRingAddr 0 0x7f5500000000")
		// As it does when a device starts amid one.
		s.must(s.SetFeatures(logFeatures | virtio.FeatureLogAll))
		s.must(s.SetLogBase(file, logSizeNeeded, 0x1000))
		s.must(s.SetFeatures(logFeatures))
		s.inStep()
		s.calls("SetLog false", "SetLog true", "SetLog false")
	}
	s.must(s.SetLogFD(s.event()))
	s.inStep()
	s.calls()
}

// TestLogRing: a ring's log address reaches the back-end.
func TestLogRing(t *testing.T) {
	s := beginLogged(t)
	s.must(s.SetVringNum(1, 64))
	s.must(s.SetVringAddrLog(1, uva, uva+0x4000, uva+0x8000, 0x1234000))
	s.must(s.SetVringKick(1, s.event()))
	s.inStep()
	unlock := s.b.lock()
	c := s.b.rings[1].config
	unlock()
	if !c.Log || c.LogAddr != 0x1234000 {
		t.Errorf("%+v", c)
	}
	// Now a log must have room for it.
	const last = 0x1234000 / guestmem.LogPage / 8
	file := s.file(0x1000)
	if err := s.SetLogBase(file, last, 0); !nacked(err) {
		t.Error(err)
	}
	s.must(s.SetLogBase(file, last+1, 0))
	// And a ring must be where the log has room.
	for _, addr := range []uint64{(last + 1) * 8 * guestmem.LogPage, ^uint64(0) - 3, (last+1)*8*guestmem.LogPage - 6 - 8*64 + 1} {
		if err := s.SetVringAddrLog(0, uva, uva+0x4000, uva+0x8000, addr); addr>>60 != 0 && !nacked(err) {
			t.Errorf("%#x: %v", addr, err)
		}
	}
	s.must(s.SetVringNum(0, 64))
	if err := s.SetVringAddrLog(0, uva, uva+0x4000, uva+0x8000, (last+1)*8*guestmem.LogPage-6-8*64+1); !nacked(err) {
		t.Error(err)
	}
	s.must(s.SetVringAddrLog(0, uva, uva+0x4000, uva+0x8000, (last+1)*8*guestmem.LogPage-6-8*64))
}

// hostileLogs are logs that cannot be used.
func hostileLogs(s *script) map[string]func() error {
	file := s.file(0x2000)
	log := func(fd int, size, offset uint64) func() error {
		return func() error { return s.SetLogBase(fd, size, offset) }
	}
	raw := func(fds ...int) func() error {
		return func() error {
			b := ne.AppendUint64(u64(logSizeNeeded), 0)
			if err := s.SendRaw(Header{ReqSetLogBase, FlagVersion, uint32(len(b))}, b, fds); err != nil {
				return err
			}
			_, b, _, err := s.RecvRaw(time.Time{})
			if err == nil && ne.Uint64(b) != 0 {
				err = &NackError{ReqSetLogBase, ne.Uint64(b)}
			}
			return err
		}
	}
	return map[string]func() error{
		"empty": log(file, 0, 0), "too small": log(file, logSizeNeeded-1, 0), "beyond the file": log(file, 0x2001, 0),
		"offset beyond the file": log(file, 0x1000, 0x1001), "wraps": log(file, 0x2000, ^uint64(0)-0xfff),
		"huge": log(file, ^uint64(0), 0), "no file": log(s.event(), logSizeNeeded, 0),
		"no descriptor": raw(), "two descriptors": raw(file, file),
	}
}

// TestLogHostile: while logging is off a bad log is refused, the session goes on, and
// the log before it stays.
func TestLogHostile(t *testing.T) {
	s := beginLogged(t)
	bad := hostileLogs(s)
	s.must(s.SetLogBase(s.file(logSizeNeeded), logSizeNeeded, 0))
	before := openFDs(t)
	for range 20 {
		for name, try := range bad {
			if err := try(); !nacked(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if after := openFDs(t); after != before {
		t.Errorf("%d descriptors, had %d", after, before)
	}
	s.must(s.SetFeatures(logFeatures | virtio.FeatureLogAll))
	s.inStep()
	s.calls("SetLog true")
}

// TestLogHostileWhileLogging: then it is the end of the session, since front-ends do
// not look at the answer.
func TestLogHostileWhileLogging(t *testing.T) {
	var names []string
	for name := range hostileLogs(beginLogged(t)) {
		if name != "two descriptors" { // refused before anybody looks at it
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			s := beginLogged(t)
			s.must(s.SetLogBase(s.file(logSizeNeeded), logSizeNeeded, 0))
			s.must(s.SetFeatures(logFeatures | virtio.FeatureLogAll))
			if err := hostileLogs(s)[name](); err == nil || nacked(err) {
				t.Errorf("the session goes on: %v", err)
			}
			err := <-s.done
			s.done <- err
			if !errors.Is(err, ErrProtocol) || s.c.ByReason()["log"] != 1 {
				t.Errorf("%v; %v", err, s.c.ByReason())
			}
		})
	}
}

// TestLogWithoutSHMFD: the bit alone is worth nothing.
func TestLogWithoutSHMFD(t *testing.T) {
	s := begin(t)
	s.b.mu.Lock()
	s.b.logs = true
	s.b.mu.Unlock()
	s.hello()
	if err := s.SetFeatures(logFeatures | virtio.FeatureLogAll); !nacked(err) {
		t.Error(err)
	}
	s.refused(ReqSetLogBase, append(u64(logSizeNeeded), u64(0)...), s.file(logSizeNeeded))
	s.calls()
}

// TestLogGoesWithTheSession: nothing is left mapped, nor logged to.
func TestLogGoesWithTheSession(t *testing.T) {
	s := beginLogged(t)
	file := s.file(logSizeNeeded)
	s.must(s.SetLogBase(file, logSizeNeeded, 0))
	s.must(s.SetFeatures(logFeatures | virtio.FeatureLogAll))
	s.inStep()
	unlock := s.b.lock()
	l := s.b.log
	unlock()
	_ = s.Close()
	err := <-s.done
	s.done <- err
	if s.b.log != nil {
		t.Error("the back-end still has the log")
	}
	defer func() {
		if recover() == nil {
			t.Error("the log is still mapped")
		}
	}()
	l.Retain()
}
