package main

import (
	"context"
	"fmt"
	"regexp"
)

// pktgen is the kernel's packet generator in the guest.
func pktgen() workload {
	return workload{
		name: "pktgen-tx-60", kind: kindBulk, direction: "tx", quick: true, lanes: []string{"netdev", "test-device"},
		about: "pktgen in the guest, frames of 60 bytes, as many as go",
		run: func(ctx context.Context, b *bench, l load) (outcome, error) {
			out, err := b.site.Guest(ctx, fmt.Sprintf(pktgenScript, frameLength, l.seconds))
			if err != nil {
				return outcome{}, err
			}
			rate, refused, err := parsePktgen(out)
			return outcome{rate: rate, unit: "packets/s", extra: map[string]float64{"errors": refused}}, err
		},
	}
}

// pktgenScript sends to an address of nobody, so that the host answers nothing.
// The generator runs until the process that started it gets a signal, and has its
// result a little later. It does not know the device by name after the driver was
// loaded anew.
const pktgenScript = `modprobe pktgen 2>/dev/null
cd /proc/net/pktgen && echo rem_device_all > kpktgend_0 && echo add_device eth0 > kpktgend_0 || exit 1
for line in "count 0" "clone_skb 0" "pkt_size %d" "delay 0" "dst 10.77.0.9" "dst_mac 02:00:00:00:00:99"; do
  echo $line > eth0 || exit 2
done
sh -c 'echo start > pgctrl' & starter=$!
sleep %.1f
kill $starter; wait $starter
n=0; while grep -q 'Result: Starting' eth0 && [ $n -lt 30 ]; do n=$((n+1)); sleep 0.1; done
cat eth0`

var pktgenResult = regexp.MustCompile(`(?s)Result: OK: (\d+)\(c\d+\+d\d+\) usec, (\d+) \(\d+byte,\d+frags\)\s+(\d+)pps .*?errors: (\d+)`)

// parsePktgen reads a device's file: packets per second, and how often the
// driver did not take one.
func parsePktgen(out string) (rate, refused float64, err error) {
	m := pktgenResult.FindStringSubmatch(out)
	if m == nil {
		return 0, 0, unexpected("pktgen", out)
	}
	if rate, err = number(m[3]); err == nil {
		refused, err = number(m[4])
	}
	return rate, refused, err
}
