package sim

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
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

// BusiestQueue stands for the virtqueue with the most packets.
const BusiestQueue = -1

// row is a record of a trace.
type row struct {
	at      int64
	packets int
	bytes   uint32 // of one packet
}

// arrivals are the rows of one virtqueue.
type arrivals struct {
	dir   coalesce.Direction
	rows  []row
	total int
}

func (a *arrivals) add(r row) error {
	switch n := len(a.rows); {
	case n > 0 && r.at < a.rows[n-1].at:
		return errors.New("time goes back")
	case n > 0 && uint64(r.at)-uint64(a.rows[0].at) > uint64(maxTraceLength):
		return fmt.Errorf("more than %d s after the first record", maxTraceLength/second)
	}
	a.rows = append(a.rows, r)
	a.total += r.packets
	return nil
}

// ReadTrace makes a workload of recorded arrivals, one record a line: either
// CSV, with or without the heading,
//
//	t_ns,packets,bytes
//	1000,2,3000
//
// or a JSON object with these three fields in each line, and optionally queue,
// the index of a virtqueue (0 if left out), and direction, "rx" (the default) or
// "tx"; others are ignored. Of several virtqueues one is taken: queue, or with
// BusiestQueue the one with the most packets, the lowest of several.
//
// The time is in nanoseconds from any origin and, for each virtqueue, must not go
// back; packets, 0 to 65536, arrived together; bytes are of all of them, below
// 2^32 (0 if left out). The trace begins with the virtqueue's first record and may
// last an hour. Empty lines and those that begin with # are passed over.
//
// A device records when it has delivered packets. Its own delays are in such a
// trace, and packets that came one by one may come together.
func ReadTrace(in io.Reader, name string, queue int) (Workload, error) {
	queues, err := readArrivals(in)
	if err != nil {
		return Workload{}, fmt.Errorf("%w: %w", ErrTrace, err)
	}
	if queue == BusiestQueue {
		for i, q := range queues {
			if best := queues[queue]; best == nil || q.total > best.total || q.total == best.total && i < queue {
				queue = i
			}
		}
	}
	q := queues[queue]
	switch {
	case q == nil && len(queues) > 0:
		return Workload{}, fmt.Errorf("%w: nothing of virtqueue %d in it", ErrTrace, queue)
	case q == nil || q.total == 0:
		return Workload{}, fmt.Errorf("%w: no packets in it", ErrTrace)
	}
	return q.workload(name), nil
}

func readArrivals(in io.Reader) (map[int]*arrivals, error) {
	queues := map[int]*arrivals{}
	lines := bufio.NewScanner(in)
	rows := 0
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || text[0] == '#' || n == 1 && strings.HasPrefix(text, "t_ns") {
			continue
		}
		r, queue, dir, err := parseRow(text)
		q := queues[queue]
		if q == nil && err == nil {
			q = &arrivals{dir: dir}
			queues[queue] = q
		}
		switch rows++; {
		case err != nil:
		case rows > maxTraceRows:
			err = fmt.Errorf("more than %d records", maxTraceRows)
		case q.dir != dir:
			err = fmt.Errorf("virtqueue %d was %v before", queue, q.dir)
		default:
			err = q.add(r)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	return queues, lines.Err()
}

func (a *arrivals) workload(name string) Workload {
	rows := a.rows
	if a.dir == coalesce.TX {
		// It begins with the program's first packet.
		rows = rows[slices.IndexFunc(rows, func(r row) bool { return r.packets > 0 }):]
	}
	first := rows[0].at
	for i := range rows {
		rows[i].at -= first
	}
	w := Workload{
		Name: name, Help: "a recorded trace", Direction: a.dir, Queues: 1,
		Duration: max(rows[len(rows)-1].at, millisecond) + 1,
		source:   func(q *queue, _ *rand.Rand) source { return &open{q: q, next: arriving(rows)} },
	}
	if a.dir == coalesce.TX {
		w.source = func(q *queue, _ *rand.Rand) source { return sendingAt(q, rows) }
		w.Duration += millisecond // what its last packets may be late
	}
	return w
}

func arriving(rows []row) func(int64) (int64, int, uint32, bool) {
	return func(now int64) (int64, int, uint32, bool) {
		if len(rows) == 0 {
			return 0, 0, 0, false
		}
		r := rows[0]
		rows = rows[1:]
		return r.at - now, r.packets, r.bytes, true
	}
}

// sendingAt is a guest's program that sends when it was recorded, or as soon as it
// can after that. The first row has packets.
func sendingAt(q *queue, rows []row) source {
	s := &sender{q: q, window: math.MaxInt, bytes: rows[0].bytes}
	left, at := rows[0].packets, int64(0)
	rows = rows[1:]
	s.gap = func() int64 {
		before := at
		for left--; left == 0; {
			if len(rows) == 0 {
				return q.end
			}
			left, at, s.bytes = rows[0].packets, rows[0].at, rows[0].bytes
			rows = rows[1:]
		}
		return at - before
	}
	return s
}

func parseRow(text string) (r row, queue int, dir coalesce.Direction, err error) {
	var at int64
	var packets, bytes uint64
	if text[0] == '{' {
		var v struct {
			At      *int64 `json:"t_ns"`
			Packets uint64 `json:"packets"`
			Bytes   uint64 `json:"bytes"`
			Queue   int    `json:"queue"`
			Dir     string `json:"direction"`
		}
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			return row{}, 0, 0, err
		}
		if v.At == nil {
			return row{}, 0, 0, errors.New("no t_ns")
		}
		if v.Dir == coalesce.TX.String() {
			dir = coalesce.TX
		} else if v.Dir != "" && v.Dir != coalesce.RX.String() {
			return row{}, 0, 0, fmt.Errorf("direction %q: want rx or tx", v.Dir)
		}
		if v.Queue < 0 {
			return row{}, 0, 0, fmt.Errorf("virtqueue %d", v.Queue)
		}
		at, packets, bytes, queue = *v.At, v.Packets, v.Bytes, v.Queue
	} else {
		f := strings.Split(text, ",")
		if len(f) < 2 || len(f) > 3 {
			return row{}, 0, 0, errors.New("want t_ns,packets,bytes")
		}
		var errs [3]error
		at, errs[0] = strconv.ParseInt(strings.TrimSpace(f[0]), 10, 64)
		packets, errs[1] = strconv.ParseUint(strings.TrimSpace(f[1]), 10, 64)
		if len(f) == 3 {
			bytes, errs[2] = strconv.ParseUint(strings.TrimSpace(f[2]), 10, 64)
		}
		if err := errors.Join(errs[:]...); err != nil {
			return row{}, 0, 0, fmt.Errorf("want t_ns,packets,bytes: %q", text)
		}
	}
	if packets > maxTracePackets {
		return row{}, 0, 0, fmt.Errorf("%d packets at once: at most %d", packets, maxTracePackets)
	}
	if bytes >= maxTraceBytes {
		return row{}, 0, 0, fmt.Errorf("%d bytes at once: fewer than 2^32", bytes)
	}
	return row{at: at, packets: int(packets), bytes: uint32(bytes / max(packets, 1))}, queue, dir, nil
}
