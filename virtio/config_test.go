package virtio

import (
	"bytes"
	"testing"
)

// The offsets of struct virtio_net_config: mac 0, status 6, max_virtqueue_pairs
// 8, mtu 10, speed 12, duplex 16, rss_max_key_size 17,
// rss_max_indirection_table_length 18, supported_hash_types 20,
// supported_tunnel_types 24.
func TestNetConfigLayout(t *testing.T) {
	c := NetConfig{
		MAC: [6]byte{0x02, 0x01, 0x02, 0x03, 0x04, 0x05}, Status: 0x1211, MaxVirtqueuePairs: 0x2221, MTU: 0x3231,
		Speed: 0x44434241, Duplex: 0x51, RSSMaxKeySize: 0x61, RSSMaxIndirectionTableLength: 0x7271,
		SupportedHashTypes: 0x84838281, SupportedTunnelTypes: 0x94939291,
	}
	want := []byte{
		0x02, 0x01, 0x02, 0x03, 0x04, 0x05, 0x11, 0x12, 0x21, 0x22, 0x31, 0x32,
		0x41, 0x42, 0x43, 0x44, 0x51, 0x61, 0x71, 0x72, 0x81, 0x82, 0x83, 0x84,
		0x91, 0x92, 0x93, 0x94,
	}
	if len(want) != NetConfigSize {
		t.Fatalf("NetConfigSize is %d", NetConfigSize)
	}
	if got := c.Bytes(); !bytes.Equal(got, want) {
		t.Errorf("got  % x\nwant % x", got, want)
	}
	b := bytes.Repeat([]byte{0xee}, NetConfigSize+2)
	c.Encode(b)
	if !bytes.Equal(b, append(want, 0xee, 0xee)) {
		t.Errorf("Encode into more room: % x", b)
	}
	if n := testing.AllocsPerRun(100, func() { c.Encode(b) }); n != 0 {
		t.Errorf("Encode: %g allocations", n)
	}
}

func TestCtrlName(t *testing.T) {
	for want, c := range map[string][2]uint8{
		"RX/PROMISC":         {0, 0},
		"RX/NOBCAST":         {0, 5},
		"MAC/TABLE_SET":      {1, 0},
		"MAC/ADDR_SET":       {1, 1},
		"VLAN/ADD":           {2, 0},
		"VLAN/DEL":           {2, 1},
		"ANNOUNCE/ACK":       {3, 0},
		"MQ/VQ_PAIRS_SET":    {4, 0},
		"MQ/RSS_CONFIG":      {4, 1},
		"MQ/HASH_CONFIG":     {4, 2},
		"GUEST_OFFLOADS/SET": {5, 0},
		"NOTF_COAL/TX_SET":   {6, 0},
		"NOTF_COAL/RX_SET":   {6, 1},
		"NOTF_COAL/VQ_SET":   {6, 2},
		"NOTF_COAL/VQ_GET":   {6, 3},
		"STATS/QUERY":        {8, 0},
		"STATS/GET":          {8, 1},
		"0/6":                {0, 6},
		"255/255":            {255, 255},
	} {
		if got := CtrlName(c[0], c[1]); got != want {
			t.Errorf("%v is called %s, want %s", c, got, want)
		}
	}
}
