package netdev_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/port/builtin"
	"github.com/vhostnet/vhostnet/virtio"
)

// TestPlainAmongOthers sends frames to an echo, of which some are plain, some ask
// for a checksum and some for more than was negotiated: whichever way each of
// them takes, they come back in order, with their headers, and are counted.
func TestPlainAmongOthers(t *testing.T) {
	for name, features := range map[string]virtio.Features{
		"mergeable": driver.DefaultFeatures | driver.Offloads,
		"one each":  (driver.DefaultFeatures | driver.Offloads) &^ virtio.FeatureMrgRxBuf,
	} {
		t.Run(name, func(t *testing.T) {
			p, err := builtin.Echo(1)
			if err != nil {
				t.Fatal(err)
			}
			dev := newDevice(t, netdev.Config{}, p)
			c, ended := connect(t, dev)
			d, err := driver.New(c, format(driver.Config{Features: features}))
			if err != nil {
				t.Fatal(err)
			}
			echoAll(t, d)
			if s := dev.Snapshot(); s.Queues[1].Drops["bad_header"] == 0 || s.Queues[0].Packets+s.Queues[1].Drops["bad_header"] != echoed {
				t.Errorf("receive queue: %+v, transmit queue: %+v", s.Queues[0], s.Queues[1])
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			ended()
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// echoed is how many frames echoAll sends.
const echoed = 20_000

// echoAll sends frames with numbers and checks what comes back.
func echoAll(t *testing.T, d *driver.Driver) {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, 8))
	tx, rx := d.Pair(0).TX, d.Pair(0).RX
	var want []virtio.NetHeader // of frames on their way, in order
	var numbers []uint32
	var got [32]driver.Packet
	for sent := uint32(0); sent < echoed || len(want) > 0; {
		tx.Reclaim()
		for sent < echoed && len(want) < 100 {
			h := virtio.NetHeader{NumBuffers: 1}
			kind := rng.IntN(40)
			switch {
			case kind == 0: // it is never negotiated
				h.GSOType, h.GSOSize = 0x7f, 100
			case kind == 1 || sent%3000 > 2800:
				h.Flags, h.CSumStart, h.CSumOffset = virtio.NetHdrFNeedsCSum, 34, 16
			}
			frame := testFrame(sent, 60+rng.IntN(1400))[virtio.NetHeaderLen:]
			if err := tx.SendPacket(&h, frame); err != nil {
				break
			}
			if h.GSOType == 0 {
				want, numbers = append(want, h), append(numbers, sent)
			}
			sent++
		}
		tx.Flush()
		n := rx.Receive(got[:])
		for i := range n {
			f := got[i].Frame()
			if h := got[i].Header(); len(want) == 0 || h != want[0] || binary.BigEndian.Uint32(f[14:]) != numbers[0] ||
				!bytes.Equal(f[:12], []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}) || f[20] != 20 {
				t.Fatalf("frame %d with %+v, want %v with %+v", binary.BigEndian.Uint32(f[14:]), h, numbers[:1], want[:1])
			}

			want, numbers = want[1:], numbers[1:]
		}
		if n == 0 && len(want) > 0 {
			if ok, err := rx.Wait(patience); err != nil || !ok {
				t.Fatalf("nothing comes back, %d are on their way: %v", len(want), err)
			}
		}
	}
}
