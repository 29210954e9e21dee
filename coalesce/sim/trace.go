package sim

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/vhostnet/vhostnet/coalesce"
)

// ErrTrace is wrapped by the errors of [ReadTrace].
var ErrTrace = errors.New("sim: not a trace of arrivals")

// Bounds of a trace: what lies beyond would run for ever.
const (
	maxTraceRows    = 10_000_000
	maxTracePackets = 1 << 16
	maxTraceBytes   = 1 << 32
	maxTraceLength  = 3600 * second
)

// row is a record of a trace.
type row struct {
	at      int64
	packets int
	bytes   uint32 // of one packet
}

// ReadTrace makes a workload of recorded arrivals, one record a line: either
// CSV, with or without the heading,
//
//	t_ns,packets,bytes
//	1000,2,3000
//
// or a JSON object with these three fields in each line, others are ignored.
// The time is in nanoseconds from any origin and must not go back; packets, 0 to
// 65536, arrived together; bytes are of all of them, below 2^32 (0 if left out).
// The trace begins with its first record and may last an hour. Empty lines and
// those that begin with # are passed over.
func ReadTrace(in io.Reader, name string, dir coalesce.Direction) (Workload, error) {
	var rows []row
	lines := bufio.NewScanner(in)
	total := 0
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || text[0] == '#' || n == 1 && strings.HasPrefix(text, "t_ns") {
			continue
		}
		r, err := parseRow(text)
		switch {
		case err != nil:
		case len(rows) == maxTraceRows:
			err = fmt.Errorf("more than %d records", maxTraceRows)
		case len(rows) > 0 && r.at < rows[len(rows)-1].at:
			err = errors.New("time goes back")
		case len(rows) > 0 && uint64(r.at)-uint64(rows[0].at) > uint64(maxTraceLength):
			err = fmt.Errorf("more than %d s after the first record", maxTraceLength/second)
		}
		if err != nil {
			return Workload{}, fmt.Errorf("%w: line %d: %w", ErrTrace, n, err)
		}
		total += r.packets
		rows = append(rows, r)
	}
	if err := lines.Err(); err != nil {
		return Workload{}, fmt.Errorf("%w: %w", ErrTrace, err)
	}
	if total == 0 {
		return Workload{}, fmt.Errorf("%w: no packets in it", ErrTrace)
	}
	first := rows[0].at
	for i := range rows {
		rows[i].at -= first
	}
	return Workload{
		Name: name, Help: "a recorded trace", Direction: dir, Queues: 1,
		Duration: max(rows[len(rows)-1].at, millisecond) + 1,
		source: func(q *queue, _ *rand.Rand) source {
			i := 0
			return &open{q: q, next: func(now int64) (int64, int, uint32, bool) {
				if i == len(rows) {
					return 0, 0, 0, false
				}
				r := rows[i]
				i++
				return r.at - now, r.packets, r.bytes, true
			}}
		},
	}, nil
}

func parseRow(text string) (row, error) {
	var at int64
	var packets, bytes uint64
	if text[0] == '{' {
		var v struct {
			At      *int64 `json:"t_ns"`
			Packets uint64 `json:"packets"`
			Bytes   uint64 `json:"bytes"`
		}
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			return row{}, err
		}
		if v.At == nil {
			return row{}, errors.New("no t_ns")
		}
		at, packets, bytes = *v.At, v.Packets, v.Bytes
	} else {
		f := strings.Split(text, ",")
		if len(f) < 2 || len(f) > 3 {
			return row{}, errors.New("want t_ns,packets,bytes")
		}
		var errs [3]error
		at, errs[0] = strconv.ParseInt(strings.TrimSpace(f[0]), 10, 64)
		packets, errs[1] = strconv.ParseUint(strings.TrimSpace(f[1]), 10, 64)
		if len(f) == 3 {
			bytes, errs[2] = strconv.ParseUint(strings.TrimSpace(f[2]), 10, 64)
		}
		if err := errors.Join(errs[:]...); err != nil {
			return row{}, fmt.Errorf("want t_ns,packets,bytes: %q", text)
		}
	}
	if packets > maxTracePackets {
		return row{}, fmt.Errorf("%d packets at once: at most %d", packets, maxTracePackets)
	}
	if bytes >= maxTraceBytes {
		return row{}, fmt.Errorf("%d bytes at once: fewer than 2^32", bytes)
	}
	return row{at: at, packets: int(packets), bytes: uint32(bytes / max(packets, 1))}, nil
}
