package peer

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// here is a place that any machine has.
var here = Place{Core: 0}

// kit has the test program for testpmd.
func kit(huge bool) *Kit {
	return &Kit{dpdk: dpdk{huge: huge, command: func(ctx context.Context, args ...string) *exec.Cmd { return fake(ctx, "testpmd", args...) }}}
}

const moment = time.Millisecond

func TestVirtioUser(t *testing.T) {
	for _, mode := range []string{"sink", "source", "echo"} {
		v, err := kit(true).VirtioUser(t.Context(), "/nowhere", Traffic{mode, 64}, Rings{}, here)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			w, err := v.Measure(t.Context(), moment, moment, os.Getpid())
			if err != nil || w.Packets != 1000 || w.Seconds != 0.2 || w.Counted || w.CPUSeconds < 0 {
				t.Errorf("%s: %+v, %v", mode, w, err)
			}
		}
		if err := v.Close(); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
	}
	if _, err := kit(true).VirtioUser(t.Context(), "/nowhere", Traffic{"nothing", 64}, Rings{}, here); err == nil {
		t.Error("a mode that is none")
	}
}

func TestRings(t *testing.T) {
	for r, want := range map[Rings]string{
		{InOrder: true, Mergeable: true}: "net_virtio_user0,path=/s,queues=1,queue_size=256,packed_vq=0,mrg_rxbuf=1,in_order=1",
		{Packed: true, Pairs: 2}:         "net_virtio_user0,path=/s,queues=2,queue_size=256,packed_vq=1,mrg_rxbuf=0,in_order=0",
	} {
		if got := r.device("/s"); got != want {
			t.Errorf("%+v: %s", r, got)
		}
	}
}

// TestVirtioUserFails: what is not traffic is not measured, and says what it was.
func TestVirtioUserFails(t *testing.T) {
	for mode, want := range map[string]string{"null": "no packets", "csum": "not the statistics", "mac": "PANIC"} {
		p, err := kit(true).dpdk.start(t.Context(), "fake", here, nil, forward(mode, 64))
		if err != nil {
			t.Fatal(err)
		}
		v := &virtioUser{p, "echo", "start"}
		if _, err := v.Measure(t.Context(), 0, moment, os.Getpid()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", mode, err)
		}
		_ = v.Close()
	}
	v, err := kit(true).VirtioUser(t.Context(), "/nowhere", Traffic{"sink", 64}, Rings{}, here)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := v.Measure(ctx, 0, time.Hour, os.Getpid()); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestNetVhost(t *testing.T) {
	dir := t.TempDir()
	b, err := kit(false).NetVhost(t.Context(), dir, Traffic{"echo", 64}, here)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(b.Socket()) != dir || b.PID() <= 0 {
		t.Errorf("socket %s, process %d", b.Socket(), b.PID())
	}
	if err := errors.Join(b.Resume(t.Context()), b.Pause(t.Context()), b.Resume(t.Context())); err != nil {
		t.Error(err)
	}
	if err := b.Resume(t.Context()); err == nil || !strings.Contains(err.Error(), "already started") {
		t.Errorf("started twice: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := b.Pause(t.Context()); err == nil {
		t.Error("a command was carried out by nobody")
	}
	if _, err := kit(false).NetVhost(t.Context(), dir, Traffic{"nothing", 64}, here); err == nil {
		t.Error("a mode that is none")
	}
	tap, err := kit(false).NetVhostTap(t.Context(), dir, "tap9", here)
	if err != nil {
		t.Fatal(err)
	}
	if err := tap.Close(); err != nil {
		t.Error(err)
	}
}

func TestDPDKArguments(t *testing.T) {
	args := dpdk{}.args(1, []string{"a,b", "c"}, []string{"--flag"})
	line := strings.Join(args, " ")
	for _, want := range []string{"--lcores 0@1,1@1", "--vdev a,b --vdev c", "--no-huge", "--in-memory", " -- "} {
		if !strings.Contains(line, want) {
			t.Errorf("%q lacks %q", line, want)
		}
	}
	if args[len(args)-1] != "--flag" || slices.Contains(dpdk{huge: true}.args(1, nil, nil), "--no-huge") {
		t.Errorf("arguments %q", args)
	}
}

func TestDriver(t *testing.T) {
	d, err := Driver(t.Context(), fake(t.Context(), "driver", "123"), here)
	if err != nil {
		t.Fatal(err)
	}
	w, err := d.Measure(t.Context(), 2*time.Second, time.Second, 77)
	if want := (Window{Packets: 123, Seconds: 1, Counted: true, Calls: 77, Kicks: 2}); err != nil || w != want {
		t.Errorf("%+v, %v", w, err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	for answer, want := range map[string]string{"0": "no packets", "what": "answer", `{"error":"stalled"}`: "stalled"} {
		d, err := Driver(t.Context(), fake(t.Context(), "driver", answer), here)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Measure(t.Context(), 0, time.Second, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", answer, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	// A program that ends is not waited for.
	if _, err := Driver(t.Context(), fake(t.Context(), "daemon", ""), here); err == nil || !strings.Contains(err.Error(), "no path") {
		t.Errorf("ended: %v", err)
	}
}

func TestDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	b, err := Daemon(t.Context(), "fake", fake(t.Context(), "daemon", socket), socket, here)
	if err != nil {
		t.Fatal(err)
	}
	if b.Socket() != socket {
		t.Errorf("socket %s", b.Socket())
	}
	cpu, err := CPUTime(b.PID())
	if err != nil || cpu <= 0 || cpu > patience {
		t.Errorf("processor time %v, %v", cpu, err)
	}
	if err := errors.Join(b.Resume(t.Context()), b.Pause(t.Context()), b.Close()); err != nil {
		t.Error(err)
	}
	if err := b.Pause(t.Context()); err == nil {
		t.Error("a process that has ended goes on")
	}
	if _, err := CPUTime(b.PID()); err == nil {
		t.Error("a process that has ended has processor time")
	}
	if _, err := Daemon(t.Context(), "fake", fake(t.Context(), "daemon", ""), "", here); err == nil || !strings.Contains(err.Error(), "no path") {
		t.Errorf("ended: %v", err)
	}
	if _, err := Daemon(t.Context(), "none", exec.Command("/nowhere"), "", here); err == nil {
		t.Error("started what is not there")
	}
	// One that lives but does not listen is ended when nobody waits any more.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Daemon(ctx, "deaf", fake(t.Context(), "daemon", socket+"2"), socket+"3", here); !errors.Is(err, context.Canceled) {
		t.Errorf("deaf: %v", err)
	}
}

// TestPlace: a child is where it was put.
func TestPlace(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	b, err := Daemon(t.Context(), "fake", fake(t.Context(), "daemon", socket), socket, Place{Core: 0, Nice: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(b.PID(), &set); err != nil || set.Count() != 1 || !set.IsSet(0) {
		t.Errorf("cores %v, %v", set, err)
	}
	// The system call returns 20 minus the priority.
	if n, err := unix.Getpriority(unix.PRIO_PROCESS, b.PID()); err != nil || n != 19 {
		t.Errorf("priority %d, %v", n, err)
	}
	if _, err := Daemon(t.Context(), "fake", fake(t.Context(), "daemon", socket), socket, Place{Core: 1000}); err == nil {
		t.Error("there are not that many cores")
	}
}

func TestIdle(t *testing.T) {
	const text = `cpu  1 2 3 4 5 6 7 8 9 10
cpu0 10 20 30 400 50 6 7 8 9 10
cpu12 1 1 1 7 0 1 1
intr 1 2 3
`
	got, err := idle(text)
	if want := map[int]time.Duration{0: 4500 * time.Millisecond, 12: 70 * time.Millisecond}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"cpu0 1 2 3 4", "cpux 0 0 1 5 6 7", "cpu0 1 2 3 x 5 6", "cpu0 1 2 3 4 x 6"} {
		if _, err := idle(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	if cores, err := Idle(); err != nil || len(cores) == 0 {
		t.Errorf("%v, %v", cores, err)
	}
}

func TestListens(t *testing.T) {
	const table = `Num       RefCount Protocol Flags    Type St Inode Path
000000007a2b0b7e: 00000002 00000000 00010000 0001 01 41046 /run/listening
00000000b64bbd22: 00000003 00000000 00000000 0001 03 41047 /run/connected
00000000b64bbd23: 00000003 00000000 00000000 0001 03 41048
`
	for path, want := range map[string]bool{"/run/listening": true, "/run/connected": false, "/run/none": false, "": false} {
		if listens(table, path) != want {
			t.Errorf("%q: %v", path, !want)
		}
	}
}
