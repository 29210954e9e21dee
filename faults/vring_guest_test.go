package faults

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/virtio"
)

// scratch is guest memory that neither a ring nor a buffer has, up to the end.
const scratch = 0xE00000

// lineRingBroken is what the log says of a ring that is taken out of service.
const lineRingBroken = "virtqueue is broken"

// watch starts rings that tell of their errors.
func watch(g *scripted.Guest, qs ...int) {
	for _, q := range qs {
		g.Must(g.SetVringErr(q, g.Ring(q).Err))
		g.Start(q)
	}
}

// barrier returns when the workers of these rings have finished what they were at:
// they answer a message between two bursts.
func barrier(g *scripted.Guest, qs ...int) {
	for _, q := range qs {
		g.Must(g.SetVringErr(q, g.Ring(q).Err))
	}
}

// restart stops a ring and starts it with cleared memory at the given index.
func restart(g *scripted.Guest, q int, base uint16) {
	_, err := g.GetVringBase(q)
	g.Must(err)
	g.Ring(q).Reset(base)
	g.Start(q)
}

// kick publishes what was put and notifies.
func kick(g *scripted.Guest, q int) {
	g.Ring(q).Publish()
	g.Must(g.Ring(q).Notify())
}

// signals takes all signals from an eventfd and returns how many there were.
func signals(g *scripted.Guest, fd int) uint64 {
	n, err := scripted.Drain(fd)
	g.Must(err)
	return n
}

// expectUsed waits for the next used element of a chain that was put by hand.
func expectUsed(t *testing.T, r *scripted.Ring, id, n uint32) {
	t.Helper()
	scripted.Until(t, fmt.Sprintf("element %d of ring %d is used", r.Seen, r.Index), func() bool { return r.UsedIdx() != r.Seen })
	gotID, gotN := r.UsedElem(r.Seen)
	if gotID != id || gotN != n {
		t.Fatalf("ring %d: used element %d is chain %d with %d bytes, want %d with %d", r.Index, r.Seen, gotID, gotN, id, n)
	}
	r.Seen++
}

// expectBroken waits for the error signal of a ring.
func expectBroken(t *testing.T, r *scripted.Ring) {
	t.Helper()
	scripted.Until(t, fmt.Sprintf("ring %d is broken", r.Index), func() bool {
		n, err := scripted.Drain(r.Err)
		return n > 0 && err == nil
	})
}

// expectIdle waits for a tenth of a second in which the process does nothing,
// which one that spins never has.
func expectIdle(t *testing.T, c *scripted.Child) {
	t.Helper()
	scripted.Until(t, "the process is idle", func() bool {
		before := ticks(t, c)
		time.Sleep(100 * time.Millisecond)
		return ticks(t, c)-before <= 2
	})
}

// ticks is the processor time of a process, in hundredths of a second.
func ticks(t *testing.T, c *scripted.Child) (sum int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.PID()))
	if err != nil {
		t.Fatal(err)
	}
	// Behind the name in parentheses the first field is the third.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	for _, s := range f[11:13] {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// needKick tells whether the device has asked for a kick since the available index
// was old.
func needKick(r *scripted.Ring, old uint16, eventIdx bool) bool {
	if eventIdx {
		return r.Next-r.AvailEvent()-1 < r.Next-old
	}
	return r.UsedFlags()&virtio.UsedFNoNotify == 0
}

// spin waits awake until cond is true; a sleep would hide a race.
func spin(what string, cond func() bool) error {
	for deadline := time.Now().Add(scripted.Hang); ; {
		for range 200 {
			if cond() {
				return nil
			}
			runtime.Gosched()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: %s", scripted.ErrHang, what)
		}
	}
}

// command sends a control command on ring q and returns its answer.
func command(t *testing.T, g *scripted.Guest, q int, class, cmd uint8, data ...byte) (ack uint8) {
	t.Helper()
	copy(g.Mem.At(scratch, 2), []byte{class, cmd})
	g.Mem.Bytes[scratch+32] = 0xA5
	segs := []scripted.Seg{{Addr: scratch, Len: 2}}
	if len(data) > 0 {
		copy(g.Mem.At(scratch+64, len(data)), data)
		segs = append(segs, scripted.Seg{Addr: scratch + 64, Len: uint32(len(data))})
	}
	r := g.Ring(q)
	_, err := r.Add(append(segs, scripted.Seg{Addr: scratch + 32, Len: 1, Write: true})...)
	g.Must(err)
	kick(g, q)
	_, n, err := r.Wait()
	g.Must(err)
	if n != 1 {
		t.Fatalf("%s: %d bytes written into an answer of one", virtio.CtrlName(class, cmd), n)
	}
	return g.Mem.Bytes[scratch+32]
}

// expectAck sends a control command and expects its answer.
func expectAck(t *testing.T, g *scripted.Guest, q int, want, class, cmd uint8, data ...byte) {
	t.Helper()
	if ack := command(t, g, q, class, cmd, data...); ack != want {
		t.Errorf("%s with % x: answer %d, want %d", virtio.CtrlName(class, cmd), data[:min(len(data), 24)], ack, want)
	}
}
