package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
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
	fmt.Printf("device: negotiated %s\n", strings.Join(d.NegotiatedFeatures, " "))
	return nil
}

// allQueues runs the same loads before and after `ethtool -C`.
func (s *stage) allQueues(ctx context.Context) error {
	heading("notifications before")
	if err := s.show(ctx, "ethtool -c eth0 | grep -E '^(rx|tx)-(usecs|frames):'"); err != nil {
		return err
	}
	var rows []row
	if err := s.loads(ctx, "before", &rows); err != nil {
		return err
	}
	heading("the guest sets limits; they reach the device")
	for _, command := range []string{
		"ethtool -C eth0 rx-usecs 64 rx-frames 64 tx-usecs 64 tx-frames 64",
		"ethtool -c eth0 | grep -E '^(rx|tx)-(usecs|frames):'",
	} {
		if err := s.show(ctx, command); err != nil {
			return err
		}
	}
	if err := s.showLimits(ctx); err != nil {
		return err
	}
	heading("notifications after")
	if err := s.loads(ctx, "after", &rows); err != nil {
		return err
	}
	heading("before and after")
	return table(rows)
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
	load, when    string
	mbits         float64
	packets       float64 // per second, of the direction of the data
	notifications float64 // per second, of all queues
	perPacket     float64
}

// loads runs iperf3 in both directions, with TCP and with small UDP packets.
func (s *stage) loads(ctx context.Context, when string, rows *[]row) error {
	for _, l := range []struct{ name, args, kind string }{
		{"TCP guest to host", "", "tx"},
		{"TCP host to guest", "-R", "rx"},
		{"UDP guest to host, 64 bytes", "-u -l 64 -b 5M", "tx"},
		{"UDP host to guest, 64 bytes", "-u -l 64 -b 5M -R", "rx"},
	} {
		before, err := s.backend.Device(ctx)
		if err != nil {
			return err
		}
		start := time.Now()
		out, err := s.run(ctx, fmt.Sprintf("iperf3 -J -i 0 -c %s -t %d %s", hostAddress, loadSeconds, l.args))
		if err != nil {
			return err
		}
		seconds := time.Since(start).Seconds()
		after, err := s.backend.Device(ctx)
		if err != nil {
			return err
		}
		rate, err := receivedRate(out)
		if err != nil {
			return err
		}
		data := qemutest.Sum(after, l.kind).Minus(qemutest.Sum(before, l.kind))
		calls := qemutest.Sum(after, "rx").Minus(qemutest.Sum(before, "rx")).Calls +
			qemutest.Sum(after, "tx").Minus(qemutest.Sum(before, "tx")).Calls
		r := row{
			load: l.name, when: when, mbits: rate / 1e6, packets: float64(data.Packets) / seconds,
			notifications: float64(calls) / seconds, perPacket: float64(data.Calls) / float64(max(data.Packets, 1)),
		}
		*rows = append(*rows, r)
		fmt.Printf("%-28s %7.1f Mbit/s, %7.0f packets/s, the device sent %6.0f notifications/s\n",
			r.load, r.mbits, r.packets, r.notifications)
	}
	return nil
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

// table prints the loads with what changed.
func table(rows []row) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "load\t\tMbit/s\tpackets/s\tnotifications/s\tper packet\t")
	half := len(rows) / 2
	for i := range half {
		for _, r := range []row{rows[i], rows[i+half]} {
			fmt.Fprintf(w, "%s\t%s\t%.1f\t%.0f\t%.0f\t%.3f\t\n", r.load, r.when, r.mbits, r.packets, r.notifications, r.perPacket)
		}
	}
	return w.Flush()
}
