package qemutest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/mgmt"
	"github.com/vhostnet/vhostnet/netdev"
)

// station is a guest on a switch.
type station struct {
	name, address string
	guest         *Guest
}

// lan is one vhostnet process whose devices share a switch, with a guest on each.
type lan struct {
	api      *mgmt.Client
	stations []*station
}

// newLAN boots a guest of a lane on each device of a switch. Without namespaces: nothing
// here reaches the host's network.
func newLAN(t *testing.T, ctx context.Context, lanes ...Lane) *lan {
	t.Helper()
	binary, err := backendBinary()
	if err != nil {
		t.Fatal(err)
	}
	l := &lan{}
	dir := shortDir(t)
	var config strings.Builder
	for i := range lanes {
		s := &station{name: fmt.Sprint("guest", i), address: fmt.Sprint("10.79.0.", i+1)}
		l.stations = append(l.stations, s)
		fmt.Fprintf(&config, "[[device]]\nname = %q\nsocket-path = %q\nport = \"switch:lan\"\nmac = \"52:54:00:76:6e:%02x\"\nqueue-pairs = 2\n",
			s.name, filepath.Join(dir, s.name), i+1)
	}
	file, api := filepath.Join(dir, "c.toml"), filepath.Join(dir, "api")
	if err := os.WriteFile(file, []byte(config.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	log := &Console{}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), binary, "serve", "--config", file, "--api", "unix:"+api)
	cmd.Stdout, cmd.Stderr = log, log
	p, err := start("vhostnet", cmd, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("vhostnet:\n%s", log.Tail(60))
		}
	})
	if _, err := log.WaitFor(ctx, "msg=\"waiting for a front-end\".*"+l.stations[len(lanes)-1].name); err != nil {
		t.Fatal(err)
	}
	for l.api == nil {
		if l.api, err = mgmt.Dial(ctx, "unix:"+api); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("vhostnet's API: %v\n%s", err, log)
		case <-p.Done():
			t.Fatalf("vhostnet ended: %v\n%s", p.err, log)
		case <-time.After(pollInterval):
		}
	}
	t.Cleanup(l.api.Close)
	for i, lane := range lanes {
		s := l.stations[i]
		s.guest = boot(t, ctx, Config{
			Lane: lane, Socket: filepath.Join(dir, s.name), Address: s.address + "/24", QueuePairs: 2, MemoryMB: 256,
		})
	}
	return l
}

// devices are the devices as they are now, those of the stations in order.
func (l *lan) devices(t *testing.T, ctx context.Context) (list []netdev.DeviceSnapshot) {
	t.Helper()
	for _, s := range l.stations {
		d, err := l.api.Device(ctx, s.name)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, d)
	}
	return list
}

// TestSwitch: two guests talk through a switch in the process, and every frame that
// one of them sends is counted on its way to the other.
func TestSwitch(t *testing.T) {
	for _, lane := range []Lane{LaneUML, LaneNetdev} {
		t.Run(fmt.Sprintf("%v and %v", LaneUML, lane), func(t *testing.T) {
			ctx := limit(t, 3*time.Minute)
			l := newLAN(t, ctx, LaneUML, lane)
			for i, s := range l.stations {
				t.Run("from "+s.name, func(t *testing.T) { l.talk(t, ctx, i) })
			}
			flooded := uint64(0)
			for _, d := range l.devices(t, ctx) {
				// Each has one address behind it, its own.
				c := d.PortCounters
				if d.PortKind != "switch" || c["addresses"] != 1 || c["bad_source"]+c["moves"]+c["segmented"] != 0 {
					t.Errorf("%s: %s, %v", d.Name, d.Port, c)
				}
				flooded += c["flooded"]
			}
			// The first frame of all asks who has an address; few do after it.
			if flooded < 1 || flooded > 100 {
				t.Errorf("%d frames were flooded", flooded)
			}
			for _, s := range l.stations {
				if err := s.guest.PowerOff(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// talk sends from one station to the other one.
func (l *lan) talk(t *testing.T, ctx context.Context, i int) {
	from, to := l.stations[i], l.stations[1-i]
	before := l.devices(t, ctx)
	contains(t, must(t, ctx, from.guest, "ping -c 10 -i 0.1 -W 5 "+to.address), "10 packets transmitted, 10 packets received, 0% packet loss")
	l.counted(t, ctx, before, 10)

	server, err := to.guest.Go("iperf3 -s -1", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	before = l.devices(t, ctx)
	// The server may not listen yet.
	must(t, ctx, from.guest, "for i in $(seq 100); do iperf3 -c "+to.address+" -n 64M && exit 0; sleep 0.1; done; exit 1")
	if r, err := server.Wait(ctx); err != nil || r.Exit != 0 {
		t.Errorf("server: %v, status %d\n%s", err, r.Exit, r.Output)
	}
	after := l.counted(t, ctx, before, 100)
	// iperf3 leaves off with some of it still in its socket.
	if n := Sum(after[i], "tx").Minus(Sum(before[i], "tx")).Bytes; n < 32<<20 {
		t.Errorf("%d bytes left %s", n, from.name)
	}
}

// counted waits until nothing is on its way, and compares what each guest has sent
// with what the other one has got and what the switch has lost. There must be so
// many frames each way.
func (l *lan) counted(t *testing.T, ctx context.Context, before []netdev.DeviceSnapshot, frames uint64) []netdev.DeviceSnapshot {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		after := l.devices(t, ctx)
		problem := ""
		for i, from := range after {
			to := after[1-i]
			sent := Sum(from, "tx").Minus(Sum(before[i], "tx"))
			got := Sum(to, "rx").Minus(Sum(before[1-i], "rx"))
			lost := to.PortCounters["receiver_full"] - before[1-i].PortCounters["receiver_full"]
			if sent.Packets < frames || got.Packets+lost != sent.Packets {
				problem = fmt.Sprintf("%s sent %d frames, %s got %d, and the switch lost %d; %v, %v", from.Name, sent.Packets, to.Name,
					got.Packets, lost, from.PortCounters, to.PortCounters)
			}
		}
		if problem == "" {
			return after
		}
		select {
		case <-ctx.Done():
			t.Fatal(problem)
		case <-time.After(pollInterval):
		}
	}
}
