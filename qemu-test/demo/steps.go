package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/vhostnet/vhostnet/netdev"
	qemutest "github.com/vhostnet/vhostnet/qemu-test"
)

// loadSeconds is how long each load runs.
const loadSeconds = 4

// show runs a command in the guest and prints it with its output.
func (s *stage) show(ctx context.Context, command string) error {
	fmt.Println("guest# " + command)
	out, err := s.run(ctx, command)
	fmt.Print(out)
	return err
}

func (s *stage) run(ctx context.Context, command string) (string, error) {
	r, err := s.guest.Run(ctx, command)
	if err == nil && r.Exit != 0 {
		err = fmt.Errorf("%q in the guest: exit status %d\n%s", command, r.Exit, r.Output)
	}
	return r.Output, err
}

// introduce shows the guest's side of the device.
func (s *stage) introduce(ctx context.Context) error {
	for _, command := range []string{
		"uname -sr",
		// Also a first command of the control queue, and a line in the kernel's log.
		"ip link set eth0 promisc on; ip link set eth0 promisc off",
		"dmesg | grep eth0",
		"ip -br addr show eth0",
		"ethtool -i eth0 | head -n 1",
		"ping -c 3 -i 0.3 " + hostAddress,
	} {
		if err := s.show(ctx, command); err != nil {
			return err
		}
	}
	d, err := s.backend.Device(ctx)
	if err != nil {
		return err
	}
	fmt.Println("device: negotiated")
	for names := range slices.Chunk(d.NegotiatedFeatures, 4) {
		fmt.Println("  " + strings.Join(names, " "))
	}
	return nil
}

// settings are the limits that the loads run under, one after the other. The
// first is what the driver starts with.
var settings = []struct{ name, command string }{
	{"every packet", ""},
	{"64 us / 64", "ethtool -C eth0 rx-usecs 64 rx-frames 64 tx-usecs 64 tx-frames 64"},
	{"1000 us / 128", "ethtool -C eth0 rx-usecs 1000 rx-frames 128 tx-usecs 1000 tx-frames 128"},
}

// allQueues runs the same loads before and after `ethtool -C`.
func (s *stage) allQueues(ctx context.Context) error {
	const read = "ethtool -c eth0 | grep -E '^(rx|tx)-(usecs|frames):'"
	var passes [][]row
	for _, set := range settings {
		if set.command == "" {
			heading("notifications before the guest sets limits")
		} else {
			heading("notifications after the guest has set limits")
			if err := s.show(ctx, set.command); err != nil {
				return err
			}
		}
		if err := s.show(ctx, read); err != nil {
			return err
		}
		if err := s.showLimits(ctx); err != nil {
			return err
		}
		rows, err := s.loads(ctx, set.name)
		if err != nil {
			return err
		}
		passes = append(passes, rows)
	}
	heading("side by side")
	return table(passes)
}

// oneQueue sets the limits of one queue pair.
func (s *stage) oneQueue(ctx context.Context) error {
	heading("limits of one queue pair")
	if err := s.show(ctx, "ethtool -Q eth0 queue_mask 0x2 --coalesce rx-usecs 16 rx-frames 8 tx-usecs 128 tx-frames 32"); err != nil {
		return err
	}
	if err := s.show(ctx, "ethtool -Q eth0 queue_mask 0x3 --show-coalesce | grep -E '^(Queue|(rx|tx)-(usecs|frames):)'"); err != nil {
		return err
	}
	return s.showLimits(ctx)
}

// showLimits prints what the device has, from its API.
func (s *stage) showLimits(ctx context.Context) error {
	d, err := s.backend.Device(ctx)
	if err != nil {
		return err
	}
	fmt.Println("device:")
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  virtqueue\tthe guest set\tin force")
	limits := func(l netdev.LimitsSnapshot) string { return fmt.Sprintf("%d us / %d packets", l.Usecs, l.Packets) }
	for _, q := range d.Queues {
		if q.Kind != "control" {
			fmt.Fprintf(w, "  %d (%s of pair %d)\t%s\t%s\n", q.Index, q.Kind, q.Pair, limits(q.Coalesce.Guest), limits(q.Coalesce.Effective))
		}
	}
	return w.Flush()
}

// row is the result of one load.
type row struct {
	load, limits  string
	mbits         float64
	packets       float64 // per second, of the direction of the data
	notifications float64 // per second, of all queues
	perPacket     float64
}

// loads runs iperf3 in both directions, with TCP and with small UDP packets.
func (s *stage) loads(ctx context.Context, limits string) ([]row, error) {
	var rows []row
	for _, l := range []struct{ name, args, kind string }{
		{"TCP guest to host", "", "tx"},
		{"TCP host to guest", "-R", "rx"},
		{"UDP guest to host, 64 bytes", "-u -l 64 -b 5M", "tx"},
		{"UDP host to guest, 64 bytes", "-u -l 64 -b 5M -R", "rx"},
	} {
		before, err := s.backend.Device(ctx)
		if err != nil {
			return nil, err
		}
		start := time.Now()
		out, err := s.run(ctx, fmt.Sprintf("iperf3 -J -i 0 -c %s -t %d %s", hostAddress, loadSeconds, l.args))
		if err != nil {
			return nil, err
		}
		seconds := time.Since(start).Seconds()
		after, err := s.backend.Device(ctx)
		if err != nil {
			return nil, err
		}
		rate, err := receivedRate(out)
		if err != nil {
			return nil, err
		}
		data := qemutest.Sum(after, l.kind).Minus(qemutest.Sum(before, l.kind))
		calls := qemutest.Sum(after, "rx").Minus(qemutest.Sum(before, "rx")).Calls +
			qemutest.Sum(after, "tx").Minus(qemutest.Sum(before, "tx")).Calls
		r := row{
			load: l.name, limits: limits, mbits: rate / 1e6, packets: float64(data.Packets) / seconds,
			notifications: float64(calls) / seconds, perPacket: float64(data.Calls) / float64(max(data.Packets, 1)),
		}
		rows = append(rows, r)
		fmt.Printf("%-28s %7.1f Mbit/s, %7.0f packets/s, the device sent %6.0f notifications/s\n",
			r.load, r.mbits, r.packets, r.notifications)
	}
	return rows, nil
}

// receivedRate reads the receiver's rate in bit/s from iperf3's report.
func receivedRate(out string) (float64, error) {
	var report struct {
		Error string `json:"error"`
		End   struct {
			Sum         *struct{ rate } `json:"sum"`
			SumReceived *struct{ rate } `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return 0, fmt.Errorf("iperf3's report: %w\n%s", err, out)
	}
	switch {
	case report.Error != "":
		return 0, fmt.Errorf("iperf3: %s", report.Error)
	case report.End.SumReceived != nil:
		return report.End.SumReceived.BitsPerSecond, nil
	case report.End.Sum != nil:
		return report.End.Sum.BitsPerSecond, nil
	}
	return 0, fmt.Errorf("iperf3's report has no sum:\n%s", out)
}

type rate struct {
	BitsPerSecond float64 `json:"bits_per_second"`
}

// table prints the loads, each under all limits.
func table(passes [][]row) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "load\tlimits\tMbit/s\tpackets/s\tnotifications/s\tper packet")
	for i := range passes[0] {
		for _, pass := range passes {
			r := pass[i]
			fmt.Fprintf(w, "%s\t%s\t%.1f\t%.0f\t%.0f\t%.3f\n", r.load, r.limits, r.mbits, r.packets, r.notifications, r.perPacket)
		}
	}
	return w.Flush()
}
