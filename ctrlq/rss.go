package ctrlq

import (
	"encoding/binary"
	"fmt"

	"github.com/vhostnet/vhostnet/virtio"
)

// HashConfig is what is hashed, and with which key (virtio 1.4, "Hash
// calculation").
type HashConfig struct {
	// Types is a set of hash types, not checked against those that there are.
	Types uint32
	// Key has 0 to 255 bytes, at least one if Types is not zero. It is valid
	// during the call only.
	Key []byte
}

// RSSConfig is how received frames are steered (virtio 1.4, "Setting RSS
// parameters").
type RSSConfig struct {
	HashConfig
	// Table has a power of two of entries, 1 to 65536. An entry is a queue
	// pair's number, unchecked, and so is Unclassified, which is for frames
	// without a hash. Table is valid during the call only.
	Table        []uint16
	Unclassified uint16
	// MaxTX is how many transmit queues the driver may use, unchecked.
	MaxTX uint16
}

// rss decodes le32 types, le16 mask, le16 unclassified, le16 table[mask+1], le16
// max_tx_vq, u8 key length, key.
func (c *call) rss() error {
	const head, tail = 8, 3
	d := c.data
	if len(d) < head {
		return c.lacks("the head", head)
	}
	mask := binary.LittleEndian.Uint16(d[4:])
	entries := int(mask) + 1
	if entries&(entries-1) != 0 {
		return fmt.Errorf("%w: %s: table of %d entries: want a power of two", ErrMalformed, c.name(), entries)
	}
	rest := d[head:]
	if len(rest) < 2*entries+tail {
		return c.lacks(fmt.Sprintf("a table of %d entries", entries), head+2*entries+tail)
	}
	cfg := RSSConfig{
		HashConfig:   HashConfig{Types: binary.LittleEndian.Uint32(d)},
		Unclassified: binary.LittleEndian.Uint16(d[6:]),
		Table:        make([]uint16, entries),
		MaxTX:        binary.LittleEndian.Uint16(rest[2*entries:]),
	}
	for i := range cfg.Table {
		cfg.Table[i] = binary.LittleEndian.Uint16(rest[2*i:])
	}
	var err error
	if cfg.Key, err = c.key(rest[2*entries+2:], cfg.Types); err != nil {
		return err
	}
	if err := c.negotiated(virtio.FeatureRSS); err != nil {
		return err
	}
	return c.refused(c.h.SetRSS(cfg))
}

// hash decodes le32 types, le16 reserved[4], u8 key length, key. Reserved fields
// are ignored: Linux has the fields of an RSS command there.
func (c *call) hash() error {
	const head = 12
	if len(c.data) < head+1 {
		return c.lacks("the head", head+1)
	}
	cfg := HashConfig{Types: binary.LittleEndian.Uint32(c.data)}
	var err error
	if cfg.Key, err = c.key(c.data[head:], cfg.Types); err != nil {
		return err
	}
	if err := c.negotiated(virtio.FeatureHashReport); err != nil {
		return err
	}
	return c.refused(c.h.SetHash(cfg))
}

// key cuts out a key that fills b behind its length. A byte more is let pass: newer
// Linux drivers send the padding of their structure along.
func (c *call) key(b []byte, types uint32) ([]byte, error) {
	n, room := int(b[0]), len(b)-1
	switch {
	case n != room && n != room-1:
		return nil, fmt.Errorf("%w: %s: key of %d bytes in %d", ErrMalformed, c.name(), n, room)
	case n == 0 && types != 0:
		return nil, fmt.Errorf("%w: %s: no key for hash types %#x", ErrMalformed, c.name(), types)
	}
	return b[1 : 1+n], nil
}

func (c *call) lacks(what string, want int) error {
	return fmt.Errorf("%w: %s: %d bytes of data are too few for %s: want %d", ErrMalformed, c.name(), len(c.data), what, want)
}
