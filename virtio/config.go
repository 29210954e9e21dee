package virtio

import "encoding/binary"

// NetConfigSize is the size in bytes of the configuration space with all fields
// that are defined.
const NetConfigSize = 28

// Bits of NetConfig.Status.
const (
	NetStatusLinkUp   = 1
	NetStatusAnnounce = 2
)

// NetConfig is the configuration space of a network device (virtio 1.4, "Device
// configuration layout", struct virtio_net_config).
type NetConfig struct {
	MAC [6]byte
	// Status is a set of NetStatus bits.
	Status uint16
	// MaxVirtqueuePairs is 1 to 32768.
	MaxVirtqueuePairs uint16
	// MTU is in bytes, 68 to 65535.
	MTU uint16
	// Speed is in Mbit/s, 0xffffffff unknown.
	Speed uint32
	// Duplex is 0 half, 1 full, 0xff unknown.
	Duplex                       uint8
	RSSMaxKeySize                uint8
	RSSMaxIndirectionTableLength uint16
	SupportedHashTypes           uint32
	SupportedTunnelTypes         uint32
}

// Encode writes the configuration space to b, which has at least NetConfigSize
// bytes.
func (c *NetConfig) Encode(b []byte) {
	le := binary.LittleEndian
	copy(b, c.MAC[:])
	le.PutUint16(b[6:], c.Status)
	le.PutUint16(b[8:], c.MaxVirtqueuePairs)
	le.PutUint16(b[10:], c.MTU)
	le.PutUint32(b[12:], c.Speed)
	b[16] = c.Duplex
	b[17] = c.RSSMaxKeySize
	le.PutUint16(b[18:], c.RSSMaxIndirectionTableLength)
	le.PutUint32(b[20:], c.SupportedHashTypes)
	le.PutUint32(b[24:], c.SupportedTunnelTypes)
}

// Bytes returns the configuration space.
func (c *NetConfig) Bytes() []byte {
	b := make([]byte, NetConfigSize)
	c.Encode(b)
	return b
}
