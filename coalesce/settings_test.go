package coalesce_test

import (
	"testing"

	"github.com/vhostnet/vhostnet/coalesce"
)

func lim(usecs, packets uint32) coalesce.Limits {
	return coalesce.Limits{Usecs: usecs, Packets: packets}
}

func TestEffective(t *testing.T) {
	tests := []struct {
		name        string
		guest, host coalesce.Limits
		strict      bool
		want        coalesce.Limits
	}{
		{"nobody asks", lim(0, 0), lim(0, 0), false, lim(0, 0)},
		{"no host policy: the guest's", lim(64, 32), lim(0, 0), false, lim(64, 32)},
		{"no host policy, strict", lim(64, 32), lim(0, 0), true, lim(64, 32)},
		{"no host policy keeps the guest's {1,0}", lim(0, 1), lim(0, 0), false, lim(0, 1)},
		{"guest at its default: the host is free", lim(0, 0), lim(50, 40), false, lim(50, 40)},
		{"Linux's tx default leaves the host free", lim(0, 1), lim(50, 40), false, lim(50, 40)},
		{"usecs without packets is every packet too", lim(50, 0), lim(60, 40), false, lim(60, 40)},
		{"strict takes every packet at its word", lim(0, 1), lim(50, 40), true, lim(0, 1)},
		{"guest is a ceiling, both smaller", lim(20, 16), lim(50, 40), false, lim(20, 16)},
		{"guest is a ceiling, both larger", lim(200, 160), lim(50, 40), false, lim(50, 40)},
		{"guest is a ceiling, mixed", lim(20, 160), lim(50, 40), false, lim(20, 40)},
		{"ceiling, strict", lim(20, 160), lim(50, 40), true, lim(20, 40)},
		{"a host that insists on every packet may notify sooner", lim(20, 160), lim(0, 1), false, lim(0, 1)},
		{"the same, other spelling", lim(20, 160), lim(1, 1), false, lim(1, 1)},
		{"largest values", lim(1<<32-1, 1<<32-1), lim(1<<32-1, 2), false, lim(1<<32-1, 2)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := coalesce.Effective(tt.guest, tt.host, tt.strict); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestEveryPacket(t *testing.T) {
	for l, want := range map[coalesce.Limits]bool{
		lim(0, 0): true, lim(0, 64): true, lim(50, 0): true, lim(50, 1): true, lim(0, 1): true,
		lim(1, 2): false, lim(50, 64): false,
	} {
		if got := l.EveryPacket(); got != want {
			t.Errorf("%v: %v, want %v", l, got, want)
		}
	}
	if got := lim(8, 64).String(); got != "8us/64" {
		t.Errorf("String: %q", got)
	}
}

// TestSettingsLastCommandWins walks a device of two queue pairs through the
// kinds of command in turn: a queue reports what the last one that concerned it
// said.
func TestSettingsLastCommandWins(t *testing.T) {
	s := coalesce.NewSettings(2)
	want := func(step string, limits ...coalesce.Limits) {
		t.Helper()
		for i, l := range limits {
			if got := s.VQ(i); got != l {
				t.Errorf("%s: virtqueue %d reports %v, want %v", step, i, got, l)
			}
		}
	}
	a, b, c, d := lim(1, 10), lim(2, 20), lim(3, 30), lim(4, 40)
	zero := coalesce.Limits{}
	want("new", zero, zero, zero, zero)
	s.SetAllRX(a)
	want("RX_SET", a, zero, a, zero)
	s.SetVQ(0, b)
	want("VQ_SET 0", b, zero, a, zero)
	s.SetVQ(1, c)
	want("VQ_SET 1", b, c, a, zero)
	s.SetAllTX(d)
	want("TX_SET", b, d, a, d)
	s.SetAllRX(c)
	want("RX_SET again", c, d, c, d)
}

// TestSettingsLifeCycle is reference case M04, steps 3 to 6.
func TestSettingsLifeCycle(t *testing.T) {
	s := coalesce.NewSettings(2)
	s.SetVQ(0, lim(5, 500))
	s.SetAllRX(lim(9, 900))
	if got := s.VQ(0); got != lim(9, 900) {
		t.Errorf("RX_SET after VQ_SET: %v", got)
	}
	s.SetVQ(0, lim(5, 500))
	s.Reenable(0)
	if got := s.VQ(0); got != lim(9, 900) {
		t.Errorf("enabled again: %v, want the direction's default", got)
	}
	s.SetVQ(3, lim(5, 500))
	s.Reenable(3)
	if got := s.VQ(3); got != (coalesce.Limits{}) || s.Configured(3) {
		t.Errorf("enabled again without TX_SET: %v, configured %v", got, s.Configured(3))
	}
	s.Reset()
	for i := range 4 {
		if got := s.VQ(i); got != (coalesce.Limits{}) || s.Configured(i) {
			t.Errorf("virtqueue %d after reset: %v, configured %v", i, got, s.Configured(i))
		}
	}
	s.Reenable(0)
	if got := s.VQ(0); got != (coalesce.Limits{}) {
		t.Errorf("a default survived the reset: %v", got)
	}
}

func TestSettingsIndex(t *testing.T) {
	s := coalesce.NewSettings(4)
	for _, i := range []int{-1, 8, 9, 0xffff} {
		if s.SetVQ(i, lim(1, 2)) {
			t.Errorf("VQ_SET of %d was accepted", i)
		}
		s.Reenable(i)
		if got := s.VQ(i); got != (coalesce.Limits{}) || s.Configured(i) {
			t.Errorf("virtqueue %d has settings %v", i, got)
		}
	}
	for i := range 8 {
		if !s.SetVQ(i, lim(uint32(i)+1, 2)) {
			t.Errorf("VQ_SET of %d was refused", i)
		}
	}
	for i := range 8 {
		if got := s.VQ(i); got != lim(uint32(i)+1, 2) {
			t.Errorf("virtqueue %d: %v", i, got)
		}
	}
}

func TestSettingsEffective(t *testing.T) {
	s := coalesce.NewSettings(1)
	host := lim(50, 40)
	if got := s.Effective(0, host, true); got != host {
		t.Errorf("strict, driver silent: %v, want the host's", got)
	}
	s.SetAllRX(lim(0, 0))
	if got := s.Effective(0, host, true); got != lim(0, 0) {
		t.Errorf("strict, driver said every packet: %v", got)
	}
	if got := s.Effective(0, host, false); got != host {
		t.Errorf("driver said every packet: %v, want the host's", got)
	}
	s.SetVQ(0, lim(20, 100))
	if got := s.Effective(0, host, false); got != lim(20, 40) {
		t.Errorf("ceiling: %v", got)
	}
}
