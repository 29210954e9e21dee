package main

import (
	"context"
	"slices"
	"strconv"

	"github.com/vhostnet/vhostnet/bench/peer"
)

// Kinds of loads.
const (
	kindTCP      = "tcp"
	kindUDP      = "udp"
	kindPingPong = "ping-pong"
)

// load is what a program in the guest does with a server on the host. The client is
// always the guest, whichever way the data go: so passt needs no port to forward.
type load struct {
	name, kind, about string
	program           string
	// args are those of the program but for how long it runs.
	args  []string
	parse func(out string) (outcome, error)
	// native: an emulated processor is no place for it.
	native bool
	// frames: no stack hands on a segment that is larger than a frame.
	frames bool
}

// outcome is what the program reports.
type outcome struct {
	// Amount of bytes, packets or round trips in Seconds. Of what gets lost on the
	// way, nothing counts.
	Amount  float64 `json:"amount"`
	Seconds float64 `json:"seconds"`
	// AllAmount and AllSeconds are of the whole run, for what is counted from
	// outside: a program may leave out the beginning and the end.
	AllAmount  float64 `json:"all_amount"`
	AllSeconds float64 `json:"all_seconds"`
	// Lost is the share of packets, Retransmits the number of segments.
	Lost        float64 `json:"lost,omitempty"`
	Retransmits float64 `json:"retransmits,omitempty"`
	// P50 and P99 are of round trips, in microseconds.
	P50 float64 `json:"p50_us,omitempty"`
	P99 float64 `json:"p99_us,omitempty"`
}

func (o outcome) rate() float64 { return o.Amount / o.Seconds }

const (
	// iperfPort and sockperfPort are the servers'.
	iperfPort    = 5201
	sockperfPort = 11111
	// smallPayload makes a frame of 64 bytes, without its checksum: headers of
	// Ethernet, IPv4 and UDP take 42.
	smallPayload = 64 - 14 - 20 - 8
)

func iperf(name, kind, about string, native bool, further ...string) load {
	l := load{name: name, kind: kind, about: about, program: "iperf3", parse: parseTCP, native: native}
	if kind == kindUDP {
		l.parse = parseUDP
		further = append(further, "--udp", "--bitrate", "0", "--length", strconv.Itoa(smallPayload))
	}
	l.args = append([]string{"--client", peer.HostIP, "--json"}, further...)
	return l
}

// iperfFrames is iperf for TCP whose segments are frames on either side of the
// device.
func iperfFrames(name, about string, further ...string) load {
	l := iperf(name, kindTCP, about, true, further...)
	l.frames = true
	return l
}

// allLoads are the loads in the order in which they run.
func allLoads() []load {
	return []load{
		iperf("tcp-out", kindTCP, "iperf3, one TCP connection, guest to host", false),
		iperf("tcp-in", kindTCP, "iperf3, one TCP connection, host to guest", false, "--reverse"),
		iperfFrames("tcp-frames-out", "the same without segmentation offload, guest to host"),
		iperfFrames("tcp-frames-in", "the same without segmentation offload, host to guest", "--reverse"),
		iperf("udp-out", kindUDP, "iperf3, frames of 64 B as fast as it can, guest to host; packets that arrive", true),
		iperf("udp-in", kindUDP, "iperf3, frames of 64 B as fast as it can, host to guest; packets that arrive", true, "--reverse"),
		{
			name: "ping-pong", kind: kindPingPong, about: "sockperf, UDP messages of 64 B to the host and back, one at a time",
			program: "sockperf", parse: parsePingPong,
			// Its messages to warm up would be taken for the beginning of the test.
			args: []string{"ping-pong", "-i", peer.HostIP, "-p", strconv.Itoa(sockperfPort), "-m", "64", "--full-rtt", "--dontwarmup"},
		},
	}
}

// run runs the program in the guest of a site.
func (l load) run(ctx context.Context, s site, seconds int) (outcome, error) {
	out, err := s.Guest(ctx, l.program, append(slices.Clone(l.args), "-t", strconv.Itoa(seconds))...)
	if err != nil {
		return outcome{}, err
	}
	return l.parse(out)
}
