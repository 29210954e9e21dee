package driver

import (
	"encoding/binary"
	"fmt"

	"github.com/vhostnet/vhostnet/virtio"
)

// StatsRequest asks for statistics of a virtqueue: a bitmap of virtio.Stats numbers.
type StatsRequest struct {
	VQ    uint16
	Types uint64
}

// Stats are statistics of one type of a virtqueue, in the order of the
// specification's structure for it.
type Stats struct {
	VQ     uint16
	Type   uint8
	Values []uint64
}

// StatsTypes asks for the types of statistics that the device has.
func (d *Driver) StatsTypes() (uint64, error) {
	b, err := d.stats(virtio.CtrlStatsQuery, nil)
	if err != nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, fmt.Errorf("%w: STATS_QUERY wrote %d bytes, want 8", ErrDevice, len(b))
	}
	return binary.LittleEndian.Uint64(b), nil
}

// Stats asks for statistics; the answers come in the order of the requests, and for
// each in that of the types.
func (d *Driver) Stats(requests ...StatsRequest) ([]Stats, error) {
	var req []byte
	for _, r := range requests {
		req = binary.LittleEndian.AppendUint64(req, uint64(r.VQ))
		req = binary.LittleEndian.AppendUint64(req, r.Types)
	}
	b, err := d.stats(virtio.CtrlStatsGet, req)
	if err != nil {
		return nil, err
	}
	var list []Stats
	for len(b) > 0 {
		const head = 8
		size := head
		if len(b) >= head {
			size = int(binary.LittleEndian.Uint16(b[6:]))
		}
		if size < head || size%8 != 0 || size > len(b) {
			return nil, fmt.Errorf("%w: statistics of %d bytes in %d", ErrDevice, size, len(b))
		}
		s := Stats{VQ: binary.LittleEndian.Uint16(b[2:]), Type: b[0]}
		for v := b[head:size]; len(v) > 0; v = v[8:] {
			s.Values = append(s.Values, binary.LittleEndian.Uint64(v))
		}
		list, b = append(list, s), b[size:]
	}
	return list, nil
}

// stats sends a command whose result is behind the acknowledgement.
func (d *Driver) stats(command uint8, data []byte) ([]byte, error) {
	var ack [1]byte
	result := make([]byte, controlIn-1)
	n, err := d.CommandSegments([][]byte{{virtio.CtrlStats, command}, data}, [][]byte{ack[:], result})
	switch {
	case err != nil:
		return nil, err
	case ack[0] != virtio.CtrlOK:
		return nil, fmt.Errorf("%w: STATS command %d: %d", ErrRefused, command, ack[0])
	case n < 1 || int(n) > controlIn:
		return nil, fmt.Errorf("%w: STATS command %d wrote %d bytes", ErrDevice, command, n)
	}
	return result[:n-1], nil
}
