package peer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// PortStats is what testpmd's "show port stats" says about one port.
type PortStats struct {
	RXPackets, RXMissed, RXBytes, RXErrors, RXNoMbuf uint64
	TXPackets, TXErrors, TXBytes                     uint64
	// RXRate and TXRate are packets per second since the command was last
	// given, by testpmd's own clock, to the packet.
	RXRate, TXRate uint64
}

// ErrStats is wrapped by what ParsePortStats says of a text that is not one.
var ErrStats = errors.New("peer: not the statistics of a port")

// ParsePortStats reads the answer to "show port stats N". Other output may stand
// around it. All the fields have to be there: a format that has changed must not
// pass for a port without traffic.
func ParsePortStats(text string) (s PortStats, err error) {
	fields := map[string]*uint64{
		"RX-packets:": &s.RXPackets, "RX-missed:": &s.RXMissed, "RX-bytes:": &s.RXBytes,
		"RX-errors:": &s.RXErrors, "RX-nombuf:": &s.RXNoMbuf,
		"TX-packets:": &s.TXPackets, "TX-errors:": &s.TXErrors, "TX-bytes:": &s.TXBytes,
		"Rx-pps:": &s.RXRate, "Tx-pps:": &s.TXRate,
	}
	_, rest, ok := strings.Cut(text, "NIC statistics for port")
	if !ok {
		return PortStats{}, fmt.Errorf("%w: no heading in %q", ErrStats, text)
	}
	words := strings.Fields(rest)
	for i := 0; i+1 < len(words); i++ {
		to, ok := fields[words[i]]
		if !ok {
			continue
		}
		if *to, err = strconv.ParseUint(words[i+1], 10, 64); err != nil {
			return PortStats{}, fmt.Errorf("%w: %s %s", ErrStats, words[i], words[i+1])
		}
		delete(fields, words[i])
		i++
	}
	if len(fields) > 0 {
		return PortStats{}, fmt.Errorf("%w: %d fields are missing in %q", ErrStats, len(fields), text)
	}
	return s, nil
}
