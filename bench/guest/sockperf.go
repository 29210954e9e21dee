package main

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Ports of the servers.
const (
	tcpPort   = 11111
	udpPort   = 11112
	redisPort = 6379
	httpPort  = 8080
)

// sockperf's test begins 0.4 s after its first message in ping-pong mode and
// leaves out the last 50 ms.
const sockperfEdges = 0.45

// sockperfIdle is for how long it sleeps before and after its test.
const sockperfIdle = 2300 * time.Millisecond

// wholeSeconds rounds up: sockperf and wrk take whole seconds.
func wholeSeconds(s float64) int { return max(1, int(math.Ceil(s-1e-9))) }

// sockperfTCP measures TCP messages of one size.
func sockperfTCP(size int, direction string) workload {
	return workload{
		name: fmt.Sprintf("tcp-%s-%d", direction, size), kind: kindBulk, direction: direction, quick: true, idle: sockperfIdle,
		about:   fmt.Sprintf("sockperf throughput, TCP messages of %d bytes, %s", size, way(direction)),
		prepare: sockperfServer(direction, "tcp"),
		run: func(ctx context.Context, b *bench, l load) (outcome, error) {
			out, err := sockperf(ctx, b, direction, "throughput", "--tcp", "-p", strconv.Itoa(tcpPort),
				"-m", strconv.Itoa(size), "-t", strconv.Itoa(wholeSeconds(l.seconds)))
			if err != nil {
				return outcome{}, err
			}
			messages, err := parseThroughput(out)
			if err != nil {
				return outcome{}, err
			}
			return outcome{
				rate: messages * float64(size) * 8 / 1e6, unit: "Mbit/s",
				extra: map[string]float64{"messages/s": messages},
			}, nil
		},
	}
}

// emulatedUDP is how many small packets a second are offered to a guest whose
// processor is emulated: twice as many overload it.
const emulatedUDP = 20000

// sockperfUDP measures small datagrams; what counts is what arrives.
func sockperfUDP(direction string) workload {
	return workload{
		name: "udp-" + direction + "-16", kind: kindBulk, direction: direction, quick: true, idle: sockperfIdle,
		about:   "sockperf throughput, UDP messages of 16 bytes, " + way(direction) + "; packets that the device passed on",
		prepare: sockperfServer(direction, "udp"),
		run: func(ctx context.Context, b *bench, l load) (outcome, error) {
			mps := "max"
			if direction == "rx" && emulated(b.site.Lane()) {
				mps = strconv.Itoa(emulatedUDP)
			}
			out, err := sockperf(ctx, b, direction, "throughput", "-p", strconv.Itoa(udpPort),
				"-m", "16", "--mps", mps, "-t", strconv.Itoa(wholeSeconds(l.seconds)))
			if err != nil {
				return outcome{}, err
			}
			sent, err := parseThroughput(out)
			return outcome{unit: "packets/s", extra: map[string]float64{"sent/s": sent}}, err
		},
	}
}

// sockperfPingPong measures round trips from the guest to the host and back.
func sockperfPingPong(protocol string) workload {
	return workload{
		name: "ping-pong-" + protocol, kind: kindPingPong, direction: "both", quick: true, idle: sockperfIdle,
		about:   "sockperf ping-pong, " + strings.ToUpper(protocol) + " messages of 64 bytes, client in the guest; the latency is that of the whole round trip",
		prepare: sockperfServer("tx", protocol),
		run: func(ctx context.Context, b *bench, l load) (outcome, error) {
			args := []string{"-m", "64", "--full-rtt", "-t", strconv.Itoa(wholeSeconds(l.seconds - l.settle.Seconds() + sockperfEdges))}
			if protocol == "tcp" {
				args = append(args, "--tcp", "-p", strconv.Itoa(tcpPort))
			} else {
				args = append(args, "-p", strconv.Itoa(udpPort))
			}
			out, err := sockperf(ctx, b, "tx", append([]string{"ping-pong"}, args...)...)
			if err != nil {
				return outcome{}, err
			}
			lat, trips, err := parsePingPong(out)
			return outcome{rate: trips, unit: "round trips/s", latency: lat}, err
		},
	}
}

func way(direction string) string {
	if direction == "rx" {
		return "host to guest"
	}
	return "guest to host"
}

// sockperfServer has the server on the side that receives.
func sockperfServer(direction, protocol string) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) error {
		address, port := hostAddress, udpPort
		args := []string{"server"}
		if protocol == "tcp" {
			port, args = tcpPort, append(args, "--tcp")
		}
		if direction == "rx" {
			address = guestAddress
		}
		args = append(args, "-i", address, "-p", strconv.Itoa(port))
		if direction == "rx" {
			return b.guestServer(ctx, port, "sockperf", args...)
		}
		return b.hostServer(ctx, port, "sockperf", args...)
	}
}

// sockperf runs a client on the side that sends, to the other. Its own messages to
// warm up come two seconds before the test: they would be taken for its beginning.
func sockperf(ctx context.Context, b *bench, direction string, args ...string) (string, error) {
	args = append(args, "--dontwarmup")
	if direction == "rx" {
		return b.site.Host(ctx, "sockperf", append(args, "-i", guestAddress)...)
	}
	return b.site.Guest(ctx, "sockperf "+strings.Join(append(args, "-i", hostAddress), " "))
}

var (
	messageRate = regexp.MustCompile(`Summary: Message Rate is (\d+) \[msg/sec\]`)
	roundTrip   = regexp.MustCompile(`Summary: Round trip is ([\d.]+) usec`)
	percentile  = regexp.MustCompile(`percentile ([\d.]+) =\s*([\d.]+)`)
	validRun    = regexp.MustCompile(`\[Valid Duration\] RunTime=([\d.]+) sec; SentMessages=\d+; ReceivedMessages=(\d+)`)
)

// parseThroughput reads the messages per second of a throughput run. sockperf's
// exit status is 0 even if it could not connect.
func parseThroughput(out string) (float64, error) {
	m := messageRate.FindStringSubmatch(out)
	if m == nil {
		return 0, unexpected("sockperf throughput", out)
	}
	return number(m[1])
}

// parsePingPong reads a ping-pong run with --full-rtt: microseconds, and round
// trips per second.
func parsePingPong(out string) (*latency, float64, error) {
	avg, run := roundTrip.FindStringSubmatch(out), validRun.FindStringSubmatch(out)
	if avg == nil || run == nil {
		return nil, 0, unexpected("sockperf ping-pong", out)
	}
	l := &latency{}
	var seconds, received float64
	wanted := map[string]*float64{"50.000": &l.P50, "99.000": &l.P99, "99.900": &l.P999}
	fields := []struct {
		text string
		to   *float64
	}{{avg[1], &l.Avg}, {run[1], &seconds}, {run[2], &received}}
	for _, m := range percentile.FindAllStringSubmatch(out, -1) {
		if to := wanted[m[1]]; to != nil {
			fields = append(fields, struct {
				text string
				to   *float64
			}{m[2], to})
		}
	}
	for _, f := range fields {
		var err error
		if *f.to, err = number(f.text); err != nil {
			return nil, 0, err
		}
	}
	if seconds <= 0 || received == 0 {
		return nil, 0, unexpected("sockperf ping-pong", out)
	}
	return l, received / seconds, nil
}

func number(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("a number was expected: %w", err)
	}
	return v, nil
}

// unexpected is the error for a program's output that is not what it should be.
func unexpected(program, out string) error {
	const most = 300
	out = strings.TrimSpace(out)
	if len(out) > most {
		out = "..." + out[len(out)-most:]
	}
	return fmt.Errorf("%s printed %q", program, out)
}
