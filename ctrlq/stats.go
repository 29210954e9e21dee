package ctrlq

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/vhostnet/vhostnet/virtio"
)

const (
	statsEntry = 16 // le16 index, le16 reserved[3], le64 types
	statsHead  = 8  // u8 type, u8 reserved, le16 index, le16 reserved, le16 size
)

// stats returns the result of a statistics command (virtio 1.4, "Device
// Statistics"). It goes behind the ack, as much of it as there is room for.
func (c *call) stats() ([]byte, error) {
	switch c.command {
	case virtio.CtrlStatsQuery:
		if err := c.check(0, virtio.FeatureDeviceStats); err != nil {
			return nil, err
		}
		return binary.LittleEndian.AppendUint64(nil, c.h.StatsTypes()), nil
	case virtio.CtrlStatsGet:
		return c.getStats()
	}
	return nil, c.unknown()
}

func (c *call) getStats() ([]byte, error) {
	if n := len(c.data); n == 0 || n%statsEntry != 0 {
		return nil, fmt.Errorf("%w: %s: %d bytes of data, want a multiple of %d", ErrMalformed, c.name(), n, statsEntry)
	}
	if err := c.negotiated(virtio.FeatureDeviceStats); err != nil {
		return nil, err
	}
	known := c.h.StatsTypes()
	var out []byte
	// One error fails the whole command.
	for d := c.data; len(d) > 0; d = d[statsEntry:] {
		vq, types := binary.LittleEndian.Uint16(d), binary.LittleEndian.Uint64(d[8:])
		if extra := types &^ known; extra != 0 {
			return nil, fmt.Errorf("%w: %s: types %#x of virtqueue %d", ErrMalformed, c.name(), extra, vq)
		}
		for ; types != 0; types &= types - 1 {
			kind := uint8(bits.TrailingZeros64(types))
			values, err := c.h.Stats(vq, kind)
			if err != nil {
				return nil, c.refused(err)
			}
			out = append(out, kind, 0)
			out = binary.LittleEndian.AppendUint16(out, vq)
			out = append(out, 0, 0)
			out = binary.LittleEndian.AppendUint16(out, uint16(statsHead+8*len(values)))
			for _, v := range values {
				out = binary.LittleEndian.AppendUint64(out, v)
			}
		}
	}
	return out, nil
}
