package main

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vhostnet/vhostnet/coalesce/sim"
	"github.com/vhostnet/vhostnet/coalesce/trace"
	"github.com/vhostnet/vhostnet/driver"
)

// What a process records of real traffic, the simulator takes: as arrivals, and
// as observations for other engines.
func TestTraceFromServeToSim(t *testing.T) {
	path := socket(t)
	file := filepath.Join(filepath.Dir(path), "trace.jsonl")
	p := spawn(t, "--socket-path", path, "--port=echo", "--queue-pairs=2", "--rx-moderation=adaptive", "--tx-moderation=net-dim", "--trace", file)
	p.await(listening, 1)
	d := guest(t, path, driver.Config{QueuePairs: 2})
	const frames = 3000
	frame := make([]byte, 60)
	copy(frame, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5})
	for i, pair := range []*driver.Pair{d.Pair(0), d.Pair(1)} {
		for range frames * (i + 1) / 20 {
			for range 20 {
				if err := pair.TX.Send(frame); err != nil {
					t.Fatal(err)
				}
			}
			pair.TX.Flush()
			receive(t, pair.RX, 20)
			pair.TX.Reclaim()
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	p.await("front-end disconnected", 1)
	p.end(syscall.SIGTERM, path)
	p.await("records=", 1)

	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatal(info, err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	queues, err := trace.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	// A machine may be too slow to record everything, and says so.
	complete := strings.Contains(p.log(), "dropped=0 ")
	for i, want := range []uint64{frames, frames, 2 * frames, 2 * frames} {
		var packets, bytes uint64
		for _, r := range queues[i] {
			packets += uint64(r.Packets)
			bytes += r.Bytes
			if r.Reason == "" || !r.Tick && r.Size == 0 {
				t.Errorf("queue %d: %+v", i, r)
			}
		}
		if packets > want || complete && packets < want || bytes < 60*packets || packets == 0 {
			t.Errorf("queue %d: %d packets, %d bytes, want %d packets", i, packets, bytes, want)
		}
	}

	code, out, errs := inProcess(t, "sim", "--trace", file, "--engine=adaptive", "--engine=off", "--json")
	if code != exitOK || errs != "" {
		t.Fatalf("exit code %d, %q", code, errs)
	}
	n := 0
	for sc := bufio.NewScanner(strings.NewReader(out)); sc.Scan(); n++ {
		var r sim.Result
		if err := json.Unmarshal(sc.Bytes(), &r); err != nil || r.Workload != "trace:trace.jsonl" || r.PacketsPerSecond == 0 {
			t.Errorf("%v, %s", err, sc.Text())
		}
	}
	if n != 2 {
		t.Errorf("%d results", n)
	}
	code, out, errs = inProcess(t, "sim", "--trace", file, "--trace-queue=0", "--replay")
	if code != exitOK || errs != "" || !strings.Contains(out, "virtqueue 0 (rx): ") || strings.Count(out, "\n") != 6 {
		t.Errorf("exit code %d, %q, %q", code, errs, out)
	}
	code, out, errs = inProcess(t, "sim", "--trace", file, "--trace-queue=3", "--replay", "--json", "--engine=net-dim", "--engine=fixed:8/8")
	if code != exitOK || errs != "" {
		t.Fatalf("exit code %d, %q", code, errs)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 2 {
		t.Fatal(out)
	}
	for i, engine := range []string{"net-dim", "fixed:8/8"} {
		var r trace.Replayed
		if err := json.Unmarshal([]byte(lines[i]), &r); err != nil || r.Engine != engine || r.Queue != 3 || r.Direction != "tx" || complete && r.Packets != 2*frames {
			t.Errorf("%v, %s", err, lines[i])
		}
		// The recorded engine comes to the recorded limits.
		if i == 0 && complete && r.Agreement != 1 {
			t.Errorf("agreement %v", r.Agreement)
		}
	}
	if code, _, errs := inProcess(t, "sim", "--trace", file, "--trace-queue=5", "--replay"); code != exitFailed || !strings.Contains(errs, "virtqueue 5") {
		t.Errorf("exit code %d, %q", code, errs)
	}
}

// A disk that is full spoils the trace and nothing else.
func TestTraceOnAFullDisk(t *testing.T) {
	const full = "/dev/full"
	path := socket(t)
	p := spawn(t, "--socket-path", path, "--port=source:64", "--rx-moderation=adaptive", "--trace", full)
	p.await(listening, 1)
	d := guest(t, path, driver.Config{})
	receive(t, d.Pair(0).RX, 5000)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	p.await("front-end disconnected", 1)
	p.end(syscall.SIGTERM, path)
	p.await("the trace is incomplete", 1)
	p.await("records=0", 1)
}
