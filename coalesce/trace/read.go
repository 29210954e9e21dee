package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/vhostnet/vhostnet/coalesce"
)

// ErrTrace is wrapped by the errors of [Read] that the text causes.
var ErrTrace = errors.New("trace: not a trace")

// maxRecords bounds what a trace takes in memory.
const maxRecords = 10_000_000

// maxReasons is more than all engines have.
const maxReasons = 100

// Read reads a trace and returns the records of each virtqueue in their order.
// Empty lines and those that begin with # are passed over. Within a virtqueue
// the time must not go back; the virtqueues' own order in the trace is that of
// their workers and means nothing.
func Read(in io.Reader) (map[int][]Record, error) {
	queues := map[int][]Record{}
	lines := bufio.NewScanner(in)
	// There are a few reasons and millions of records.
	reasons := map[string]string{}
	total := 0
	for n := 1; lines.Scan(); n++ {
		text := bytes.TrimSpace(lines.Bytes())
		if len(text) == 0 || text[0] == '#' {
			continue
		}
		r, err := parse(text)
		rs := queues[r.Queue]
		total++
		switch {
		case err != nil:
		case total > maxRecords:
			err = fmt.Errorf("more than %d records", maxRecords)
		case len(rs) > 0 && r.TNS < rs[len(rs)-1].TNS:
			err = errors.New("time goes back")
		case len(rs) > 0 && uint64(r.TNS)-uint64(rs[0].TNS) > math.MaxInt64:
			err = errors.New("more than 292 years after the first record")
		}
		if err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrTrace, n, err)
		}
		if _, known := reasons[r.Reason]; !known && len(reasons) < maxReasons {
			reasons[r.Reason] = r.Reason
		}
		if one, known := reasons[r.Reason]; known {
			r.Reason = one
		}
		r.Direction = direction(r.Queue).String()
		queues[r.Queue] = append(rs, r)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTrace, err)
	}
	if len(queues) == 0 {
		return nil, fmt.Errorf("%w: no records in it", ErrTrace)
	}
	return queues, nil
}

// maxQueue is the largest index that vhost-user can name.
const maxQueue = 255

// line is a record as it is read. What stands in every record must be there:
// arrivals alone say nothing about a decision.
type line struct {
	Record
	Queue  *int             `json:"queue"`
	TNS    *int64           `json:"t_ns"`
	Limits *coalesce.Limits `json:"limits"`
}

func parse(text []byte) (Record, error) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return Record{}, err
	}
	if l.Queue == nil || l.TNS == nil || l.Limits == nil {
		return Record{}, errors.New("want queue, t_ns and limits, as serve --trace writes them")
	}
	r := l.Record
	r.Queue, r.TNS, r.Limits = *l.Queue, *l.TNS, *l.Limits
	if r.Queue < 0 || r.Queue > maxQueue {
		return Record{}, fmt.Errorf("virtqueue %d: want 0 to %d", r.Queue, maxQueue)
	}
	if want := direction(r.Queue).String(); r.Direction != want {
		return Record{}, fmt.Errorf("direction %q of virtqueue %d: want %q", r.Direction, r.Queue, want)
	}
	return r, nil
}

// Busiest returns the virtqueue with the most packets, the lowest of several.
func Busiest(queues map[int][]Record) (queue int) {
	most, found := uint64(0), false
	for i, rs := range queues {
		var n uint64
		for j := range rs {
			n += uint64(rs[j].Packets)
		}
		if !found || n > most || n == most && i < queue {
			queue, most, found = i, n, true
		}
	}
	return queue
}
