package driver_test

import (
	"testing"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/netdev"
)

// TestLogControl: each answer to a control command is in the dirty log, with what the
// device writes to the control ring.
func TestLogControl(t *testing.T) {
	for _, packed := range []bool{false, true} {
		d := start(t, netdev.Config{}, driver.Config{Packed: packed, DirtyLog: true})
		if err := d.StartLog(); err != nil {
			t.Fatal(err)
		}
		reply, device := d.ControlPages()
		for i := range 20 {
			d.TakeLog(func(uint64) {})
			if _, _, err := d.VQCoalesce(uint16(i % 2)); err != nil {
				t.Fatal(err)
			}
			noted := map[uint64]bool{}
			d.TakeLog(func(gpa uint64) { noted[gpa] = true })
			if !noted[reply&^(guestmem.LogPage-1)] {
				t.Fatalf("packed %t: the reply at %#x is not noted: %v", packed, reply, noted)
			}
			if !packed && !noted[device&^(guestmem.LogPage-1)] {
				t.Fatalf("the used ring at %#x is not noted: %v", device, noted)
			}
		}
		if err := d.StopLog(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLogNotNegotiated: without the option there is no log.
func TestLogNotNegotiated(t *testing.T) {
	d := start(t, netdev.Config{}, driver.Config{})
	if err := d.StartLog(); err == nil {
		t.Error("a log that was not negotiated")
	}
}
