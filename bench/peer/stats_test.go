package peer

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// statsFormat is the answer of DPDK 22.11 to "show port stats 0".
const statsFormat = `
  ######################## NIC statistics for port 0  ########################
  RX-packets: %d    RX-missed: 0          RX-bytes:  428730368
  RX-errors: 0
  RX-nombuf:  0         
  TX-packets: %d    TX-errors: 0          TX-bytes:  428738560

  Throughput (since last show)
  Rx-pps:      %d          Rx-bps:   1102590208
  Tx-pps:      %d          Tx-bps:   1102590208
  ############################################################################
`

func TestParsePortStats(t *testing.T) {
	good := fmt.Sprintf(statsFormat, 6698912, 6699040, 2153496, 2153500)
	want := PortStats{
		RXPackets: 6698912, RXBytes: 428730368, TXPackets: 6699040, TXBytes: 428738560, RXRate: 2153496, TXRate: 2153500,
	}
	for name, text := range map[string]string{
		"alone":  good,
		"around": "VHOST_CONFIG: something RX-packets: 7\n" + good + "Tx-pps: 9\nRX-packets: 5\n",
		"CRLF":   strings.ReplaceAll(good, "\n", "\r\n"),
	} {
		got, err := ParsePortStats(text)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
	for name, text := range map[string]string{
		"empty":          "",
		"no heading":     strings.Replace(good, "NIC statistics", "statistics", 1),
		"no rate":        strings.Replace(good, "Tx-pps:", "Tx-rate:", 1),
		"no packets":     strings.Replace(good, "RX-packets:", "RX-frames:", 1),
		"not a number":   strings.Replace(good, "RX-missed: 0", "RX-missed: many", 1),
		"negative":       strings.Replace(good, "TX-errors: 0", "TX-errors: -1", 1),
		"cut":            good[:len(good)/2],
		"name at end":    strings.TrimSpace(good) + " Rx-pps:",
		"ends with name": "NIC statistics for port 0 RX-packets:",
	} {
		_, err := ParsePortStats(text)
		if name == "name at end" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !errors.Is(err, ErrStats) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParsePortStats(f *testing.F) {
	f.Add(fmt.Sprintf(statsFormat, 1, 2, 3, 4))
	f.Add("NIC statistics for port")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParsePortStats(text)
		if err != nil && (!errors.Is(err, ErrStats) || s != (PortStats{})) {
			t.Errorf("%+v, %v", s, err)
		}
	})
}
