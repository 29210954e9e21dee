package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/bench/stat"
)

// of is a row with values that are all the same.
func of(i workloadInfo, variant string, ratio, change float64, few bool) row {
	s := func(v float64) stat.Spread { return stat.Spread{Median: v, Min: v, Max: v, N: 5} }
	r := row{workloadInfo: i, variant: variant, rate: s(1), ratio: s(ratio), change: s(change), workChange: s(change), few: few}
	if i.Kind == kindPingPong {
		r.latencyRatio = s(1 / ratio)
	}
	return r
}

// What has next to no notifications, or a given rate, is left out where it would
// say nothing.
func TestSummary(t *testing.T) {
	tcp := workloadInfo{Name: "tcp", Kind: kindBulk, Direction: "tx"}
	busy := workloadInfo{Name: "busy", Kind: kindBulk, Direction: "rx"}
	paced := workloadInfo{Name: "paced", Kind: kindBulk, Direction: "rx", Paced: true}
	cost := workloadInfo{Name: "paced-irq", Kind: kindCost, Direction: "rx", Base: "paced"}
	web := workloadInfo{Name: "web", Kind: kindRequests, Direction: "both"}
	ping := workloadInfo{Name: "ping", Kind: kindPingPong, Direction: "both"}
	rows := []row{
		of(tcp, baseline, 1, 0, false),
		of(tcp, "adaptive", 1.2, -0.5, false), of(busy, "adaptive", 1.1, 0.2, true), of(paced, "adaptive", 0.9, -0.9, false),
		of(cost, "adaptive", 7, 7, false), of(web, "adaptive", 0.8, -0.1, false), of(ping, "adaptive", 0.5, 0, false),
		{workloadInfo: tcp, variant: "net-dim", failed: 5},
	}
	want := [][]string{
		{
			"uml", "adaptive", "-50 % [-90–+20]", "-70 % [-90–-50]", "-50 % [-90–+20]",
			"1.15 [1.10–1.20]", "0.80 [0.80–0.80]", "2.00 [2.00–2.00]",
		},
		{"uml", "net-dim", "", "", "", "", "", ""},
	}
	got := summaryOf("uml", rows)
	if len(got) != len(want) {
		t.Fatalf("%q", got)
	}
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("%q, want %q", got[i], want[i])
		}
		if len(got[i]) != len(headOfSummary) {
			t.Errorf("%d columns", len(got[i]))
		}
	}
}

// There is a table for each direction; what an interrupt costs stands beside the
// same workload without that cost.
func TestSections(t *testing.T) {
	r := &laneReport{Lane: "native", Rounds: 1, Workloads: []workloadInfo{
		{Name: "a", Kind: kindBulk, Direction: "rx"},
		{Name: "b", Kind: kindBulk, Direction: "tx"},
		{Name: "c", Kind: kindPingPong, Direction: "both"},
		{Name: "a-irq", Kind: kindCost, Direction: "rx", Base: "a"},
	}}
	for _, w := range r.Workloads {
		f := flow{Packets: 100, Calls: 2, CallsPerPacket: 0.02}
		r.Samples = append(r.Samples, sample{Workload: w.Name, Variant: baseline, Rate: 100, Unit: "packets/s", RX: f, TX: f, CPU: 0.5})
	}
	var w strings.Builder
	r.markdown(&w)
	var got []string
	for line := range strings.Lines(w.String()) {
		if title, ok := strings.CutPrefix(line, "### native: "); ok {
			got = append(got, strings.TrimSpace(title))
		} else if cells := strings.Split(line, " | "); len(cells) > 2 && strings.HasPrefix(line, "| ") {
			got = append(got, cells[0])
		}
	}
	want := []string{
		"Host to guest", "| workload", "| a †",
		"Guest to host", "| workload", "| b †",
		"Requests and round trips", "| workload", "| c †",
		"The price of an interrupt", "| workload", "| a †", "| a-irq †",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q in\n%s", got, w.String())
	}
	if row := rowsOf(r.Samples, r.info)[0].cells(); len(row) != len(headOfRows) || row[9] != "50 %, 5000 us" {
		t.Errorf("%q", row)
	}
}

func TestLaneNotes(t *testing.T) {
	for _, lane := range laneNames {
		if text := markdown([]*laneReport{{Lane: lane}}); !strings.Contains(text, "\n- "+laneNotes[lane]+"\n") || laneNotes[lane] == "" {
			t.Errorf("%s: %s", lane, text)
		}
	}
}

// Variations are of their own name, and only where they make a difference.
func TestVariations(t *testing.T) {
	if o := pktgen().orphaned(); o.name != "pktgen-tx-60-orphan" || !o.guest.orphan || !slices.Equal(o.lanes, []string{"netdev", "test-device"}) {
		t.Errorf("%s in %q", o.name, o.lanes)
	}
	if o := sockperfUDP("tx").orphaned(); !slices.Equal(o.lanes, []string{"uml", "netdev", "test-device"}) {
		t.Errorf("%s in %q", o.name, o.lanes)
	}
	c := pacedUDP().costly(30 * time.Microsecond)
	if c.name != "udp-rx-paced-irq30" || c.base != "udp-rx-paced" || c.guest.interruptCost != 30*time.Microsecond || !slices.Equal(c.lanes, []string{"native"}) {
		t.Errorf("%+v", c.info())
	}
}

// A sender that did not come to run has not offered what it should.
func TestPacer(t *testing.T) {
	p := pacer{rate: 1000, length: 2 * time.Second, sent: 1000, refused: 499}
	if err := p.check(); err == nil || !strings.Contains(err.Error(), "1499 of 2000") {
		t.Errorf("%v", err)
	}
	p.refused++
	if err := p.check(); err != nil {
		t.Error(err)
	}
	if e := p.extra(); e["offered/s"] != 1000 || e["sent/s"] != 500 || e["refused/s"] != 250 {
		t.Errorf("%v", e)
	}
}

func TestMessage(t *testing.T) {
	want := [messageLength]byte{6: 1, 7: 2, 9: fromClient | wantsAnswer, 13: messageLength}
	if m := message(0x102, fromClient|wantsAnswer); m != want {
		t.Errorf("% x", m)
	}
}

func TestVirtioInterrupts(t *testing.T) {
	const text = "           CPU0\n 24:        100   PCI-MSI   virtio0-input.0\n 25:         23   PCI-MSI   virtio0-output.0\n 26:  7  PCI-MSI  eth1\n"
	if n, err := virtioInterrupts(text); err != nil || n != 123 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := virtioInterrupts("24: x virtio0\n"); err == nil {
		t.Error("what is no number passes")
	}
}
