package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// iperfSum is a sum of a connection in iperf3's JSON.
type iperfSum struct {
	Seconds     float64 `json:"seconds"`
	Bytes       float64 `json:"bytes"`
	Retransmits float64 `json:"retransmits"`
	Packets     float64 `json:"packets"`
	LostPackets float64 `json:"lost_packets"`
}

// iperfReport is the part of iperf3's JSON that matters here.
type iperfReport struct {
	Error string `json:"error"`
	End   struct {
		SumSent     iperfSum `json:"sum_sent"`
		SumReceived iperfSum `json:"sum_received"`
	} `json:"end"`
}

// errNothing is returned when a program has moved nothing.
var errNothing = errors.New("nothing moved")

func parseIperf(out string) (r iperfReport, err error) {
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return r, unexpected("iperf3", out)
	}
	if r.Error != "" {
		return r, fmt.Errorf("iperf3: %s", r.Error)
	}
	return r, nil
}

// parseTCP reads a TCP run: the bytes that the receiver got.
func parseTCP(out string) (outcome, error) {
	r, err := parseIperf(out)
	if err != nil {
		return outcome{}, err
	}
	got := r.End.SumReceived
	if got.Bytes <= 0 || got.Seconds <= 0 {
		return outcome{}, fmt.Errorf("iperf3: %w: %s", errNothing, tailOf(out))
	}
	return outcome{
		Amount: got.Bytes, Seconds: got.Seconds, AllAmount: got.Bytes, AllSeconds: got.Seconds,
		Retransmits: r.End.SumSent.Retransmits,
	}, nil
}

// parseUDP reads a UDP run: the packets that came to the receiver.
func parseUDP(out string) (outcome, error) {
	r, err := parseIperf(out)
	if err != nil {
		return outcome{}, err
	}
	sum := r.End.SumReceived
	if sum.Packets <= sum.LostPackets || sum.Seconds <= 0 {
		return outcome{}, fmt.Errorf("iperf3: %w: %s", errNothing, tailOf(out))
	}
	n := sum.Packets - sum.LostPackets
	return outcome{
		Amount: n, Seconds: sum.Seconds, AllAmount: n, AllSeconds: sum.Seconds, Lost: sum.LostPackets / sum.Packets,
	}, nil
}

var (
	totalRun   = regexp.MustCompile(`\[Total Run\] RunTime=([\d.]+) sec; .*ReceivedMessages=(\d+)`)
	validRun   = regexp.MustCompile(`\[Valid Duration\] RunTime=([\d.]+) sec; SentMessages=\d+; ReceivedMessages=(\d+)`)
	percentile = regexp.MustCompile(`percentile ([\d.]+) =\s*([\d.]+)`)
)

// parsePingPong reads a run of sockperf ping-pong with --full-rtt. Its exit status
// is 0 even if nobody answered.
func parsePingPong(out string) (o outcome, err error) {
	run, all := validRun.FindStringSubmatch(out), totalRun.FindStringSubmatch(out)
	if run == nil || all == nil {
		return o, unexpected("sockperf", out)
	}
	fields := []struct {
		text string
		to   *float64
	}{{run[1], &o.Seconds}, {run[2], &o.Amount}, {all[1], &o.AllSeconds}, {all[2], &o.AllAmount}}
	wanted := map[string]*float64{"50.000": &o.P50, "99.000": &o.P99}
	for _, m := range percentile.FindAllStringSubmatch(out, -1) {
		if to := wanted[m[1]]; to != nil {
			fields = append(fields, struct {
				text string
				to   *float64
			}{m[2], to})
		}
	}
	for _, f := range fields {
		if *f.to, err = strconv.ParseFloat(f.text, 64); err != nil {
			return o, fmt.Errorf("sockperf: %w", err)
		}
	}
	if o.Seconds <= 0 || o.Amount <= 0 || o.AllAmount <= 0 || o.P50 <= 0 || o.P99 <= 0 {
		return o, unexpected("sockperf", out)
	}
	return o, nil
}

// unexpected is the error for a program's output that is not what it should be.
func unexpected(program, out string) error {
	return fmt.Errorf("%s printed %q", program, tailOf(out))
}

func tailOf(out string) string {
	const most = 300
	if out = strings.TrimSpace(out); len(out) > most {
		out = "..." + out[len(out)-most:]
	}
	return out
}
