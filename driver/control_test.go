package driver

import (
	"bytes"
	"encoding/hex"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/virtio"
)

const withControl = modern | virtio.FeatureCtrlVQ

// answer runs a device on the control queue that records each request and writes
// reply over the writable segments. The returned function ends it.
func answer(t *testing.T, d *Driver, reply []byte) (requests *[][]byte, stop func()) {
	t.Helper()
	dev := newDumbDevice(t, d, d.controlIndex())
	quit := make(chan struct{})
	requests = new([][]byte)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
			}
			c, ok := dev.pop()
			if !ok {
				runtime.Gosched()
				continue
			}
			*requests = append(*requests, c.readable())
			n, rest := 0, reply
			for _, s := range c.in {
				k := copy(s, rest)
				rest = rest[k:]
				n += k
			}
			dev.complete(c.head, n)
			dev.notify()
		}
	})
	return requests, func() {
		close(quit)
		wg.Wait()
	}
}

func TestControlCommands(t *testing.T) {
	mac := [6]byte{2, 0, 0, 0, 0, 9}
	tests := []struct {
		name string
		do   func(d *Driver) error
		want string
	}{
		{"promiscuous", func(d *Driver) error { return d.SetRXMode(Promiscuous, true) }, "000001"},
		{"no broadcast", func(d *Driver) error { return d.SetRXMode(NoBroadcast, false) }, "000500"},
		{"MAC table", func(d *Driver) error { return d.SetMACTable([][6]byte{mac}, nil) }, "0100" + "01000000" + "020000000009" + "00000000"},
		{"MAC address", func(d *Driver) error { return d.SetMAC(mac) }, "0101" + "020000000009"},
		{"add VLAN", func(d *Driver) error { return d.AddVLAN(0x123) }, "0200" + "2301"},
		{"delete VLAN", func(d *Driver) error { return d.DelVLAN(0x123) }, "0201" + "2301"},
		{"announce", func(d *Driver) error { return d.AckAnnounce() }, "0300"},
		{"queue pairs", func(d *Driver) error { return d.SetQueuePairs(0x102) }, "0400" + "0201"},
		{"offloads", func(d *Driver) error { return d.SetGuestOffloads(0x80) }, "0500" + "8000000000000000"},
		{"TX_SET", func(d *Driver) error { return d.SetTXCoalesce(0x11, 0x22) }, "0600" + "22000000" + "11000000"},
		{"RX_SET", func(d *Driver) error { return d.SetRXCoalesce(0x11, 0x22) }, "0601" + "22000000" + "11000000"},
		{"VQ_SET", func(d *Driver) error { return d.SetVQCoalesce(3, 0x11, 0x22) }, "0602" + "0300" + "0000" + "22000000" + "11000000"},
	}
	for _, polling := range []bool{false, true} {
		d := newOffline(t, Config{Polling: polling}, withControl)
		requests, stop := answer(t, d, []byte{virtio.CtrlOK})
		for _, tt := range tests {
			if err := tt.do(d); err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		stop()
		for i, tt := range tests {
			if got := hex.EncodeToString((*requests)[i]); got != tt.want {
				t.Errorf("%s: sent %s, want %s", tt.name, got, tt.want)
			}
		}
		if got := d.ControlCounters().Completed; got != uint64(len(tests)) {
			t.Errorf("%d commands counted, want %d", got, len(tests))
		}
	}
}

func TestControlVQGet(t *testing.T) {
	d := newOffline(t, Config{}, withControl)
	requests, stop := answer(t, d, []byte{0x40, 0, 0, 0, 0x32, 1, 0, 0, virtio.CtrlOK})
	usecs, packets, err := d.VQCoalesce(5)
	stop()
	if usecs != 0x132 || packets != 64 || err != nil {
		t.Errorf("%d us, %d packets, %v", usecs, packets, err)
	}
	if got := hex.EncodeToString((*requests)[0]); got != "0603"+"0500"+"0000" {
		t.Errorf("sent %s", got)
	}
}

func TestControlRefusals(t *testing.T) {
	d := newOffline(t, Config{}, withControl)
	_, stop := answer(t, d, bytes.Repeat([]byte{virtio.CtrlErr}, 9))
	if err := d.SetRXCoalesce(1, 2); !errors.Is(err, ErrRefused) {
		t.Errorf("refused: %v", err)
	}
	if _, _, err := d.VQCoalesce(0); !errors.Is(err, ErrRefused) {
		t.Errorf("refused: %v", err)
	}
	stop()

	// A device that writes nothing has not acknowledged.
	d = newOffline(t, Config{}, withControl)
	_, stop = answer(t, d, nil)
	if err := d.SetRXCoalesce(1, 2); !errors.Is(err, ErrRefused) {
		t.Errorf("silence was taken for an acknowledgement: %v", err)
	}
	if err := d.SetMACTable(make([][6]byte, 1<<15), nil); !errors.Is(err, ErrConfig) {
		t.Errorf("command that is too long: %v", err)
	}
	if _, err := d.CommandSegments(make([][]byte, 64), make([][]byte, 1)); !errors.Is(err, ErrConfig) {
		t.Errorf("too many segments: %v", err)
	}
	if _, err := d.CommandSegments(nil, nil); !errors.Is(err, ErrConfig) {
		t.Errorf("no segments: %v", err)
	}
	stop()

	d = newOffline(t, Config{}, modern)
	if err := d.SetRXCoalesce(1, 2); !errors.Is(err, ErrNoControl) {
		t.Errorf("without a control queue: %v", err)
	}
}

func TestControlSegments(t *testing.T) {
	d := newOffline(t, Config{}, withControl)
	requests, stop := answer(t, d, []byte{1, 2, 3})
	out := [][]byte{{6}, {}, {1, 2}, {3}}
	in := [][]byte{make([]byte, 2), {}, make([]byte, 3)}
	written, err := d.CommandSegments(out, in)
	stop()
	if written != 3 || err != nil || !bytes.Equal((*requests)[0], []byte{6, 1, 2, 3}) {
		t.Errorf("sent %x, %d bytes back, %v", (*requests)[0], written, err)
	}
	if !bytes.Equal(in[0], []byte{1, 2}) || !bytes.Equal(in[2], []byte{3, 0xa5, 0xa5}) {
		t.Errorf("received %x", in)
	}
}

func TestControlTimeout(t *testing.T) {
	for _, polling := range []bool{false, true} {
		d := newOffline(t, Config{ControlTimeout: time.Millisecond, Polling: polling}, withControl)
		for range 2 { // the second one must not use the buffers, which the device still has
			if err := d.SetRXCoalesce(1, 2); !errors.Is(err, ErrTimeout) {
				t.Errorf("polling %v: %v, want ErrTimeout", polling, err)
			}
		}
	}
}
