package ctrlq

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/vhostnet/vhostnet/virtio"
)

// The values that recorder returns, packets first, little-endian.
const recorded = "\x88\x77\x66\x55\x44\x33\x22\x11"

// TestVQGetReply writes the answer to every split of the room; "e" bytes are
// untouched.
func TestVQGetReply(t *testing.T) {
	const (
		ok   = "\x00"
		bad  = "\x01"
		none = "\x00\x00\x00\x00\x00\x00\x00\x00"
	)
	tests := []struct {
		split     []int
		good, bad string // the room afterwards
	}{
		{[]int{8, 1}, recorded + ok, none + bad},
		{[]int{1, 8}, ok + recorded, bad + none},
		{[]int{9}, recorded + ok, none + bad},
		{[]int{3, 3, 3}, recorded + ok, none + bad},
		{[]int{4, 4, 1}, recorded + ok, none + bad},
		{[]int{1, 4, 4}, recorded + ok, none + bad},
		{[]int{1, 1, 1, 1, 1, 1, 1, 1, 1}, recorded + ok, none + bad},
		{[]int{0, 8, 0, 1, 0}, recorded + ok, none + bad},
		{[]int{0, 1, 0, 8}, ok + recorded, bad + none},
		{[]int{12}, recorded + ok + "\xee\xee\xee", none + bad + "\xee\xee\xee"},
		{[]int{8, 4}, recorded + ok + "\xee\xee\xee", none + bad + "\xee\xee\xee"},
		{[]int{1, 16}, ok + recorded + "\xee\xee\xee\xee\xee\xee\xee\xee", bad + none + "\xee\xee\xee\xee\xee\xee\xee\xee"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.split), func(t *testing.T) {
			req := request(6, 3, uint16(0), uint16(0))
			var h recorder
			out := reply(tt.split...)
			r := Dispatch(all, &h, req, out)
			if got := bytes.Join(out, nil); string(got) != tt.good || r.Written != 9 || r.Ack != virtio.CtrlOK {
				t.Errorf("good: room %x, want %x; result %+v", got, tt.good, r)
			}
			h.err = errors.New("no such queue")
			for name, f := range map[string]virtio.Features{"refused": all, "not negotiated": virtio.FeatureCtrlVQ | virtio.FeatureNotfCoal} {
				out = reply(tt.split...)
				r = Dispatch(f, &h, req, out)
				if got := bytes.Join(out, nil); string(got) != tt.bad || r.Written != 1 || r.Ack != virtio.CtrlErr {
					t.Errorf("%s: room %x, want %x; result %+v", name, got, tt.bad, r)
				}
			}
		})
	}
}

// The room is too small for the values: the device is not asked, and the ack is
// the first byte.
func TestVQGetNoRoom(t *testing.T) {
	for n := 1; n < 9; n++ {
		var h recorder
		out := reply(n)
		r := Dispatch(all, &h, request(6, 3, uint16(0), uint16(0)), out)
		want := reply(n)
		want[0][0] = virtio.CtrlErr
		if !bytes.Equal(out[0], want[0]) || r.Written != 1 || !errors.Is(r.Err, ErrNoRoom) || h.calls != nil {
			t.Errorf("%d bytes: room %x, result %+v, calls %q", n, out[0], r, h.calls)
		}
	}
}

func TestNoWritableByte(t *testing.T) {
	for _, c := range commands {
		for _, out := range [][][]byte{nil, {}, {nil}, {{}, {}}} {
			var h recorder
			r := Dispatch(all, &h, c.req, out)
			if r.Written != 0 || r.Ack != virtio.CtrlErr || !errors.Is(r.Err, ErrNoRoom) || h.calls != nil {
				t.Errorf("%s into %v: result %+v, calls %q", c.name, out, r, h.calls)
			}
		}
	}
}

// The answer to all but VQ_GET is one byte, however much room there is.
func TestAckTakesOneByte(t *testing.T) {
	for _, c := range commands {
		if isGet(c.req) {
			continue
		}
		for _, split := range [][]int{{1}, {4}, {0, 1}, {0, 4, 0}, {1, 8}, {8, 1}} {
			var h recorder
			out := reply(split...)
			r := Dispatch(all, &h, c.req, out)
			want := bytes.Join(reply(split...), nil)
			want[0] = virtio.CtrlOK
			if got := bytes.Join(out, nil); !bytes.Equal(got, want) || r.Written != 1 {
				t.Errorf("%s into %v: room %x, result %+v", c.name, split, got, r)
			}
		}
	}
}

// Dispatch only reads the request.
func TestRequestIsNotWritten(t *testing.T) {
	for _, c := range commands {
		req := bytes.Clone(c.req)
		run(all, &recorder{}, req)
		if !bytes.Equal(req, c.req) {
			t.Errorf("%s: request is now %x", c.name, req)
		}
	}
}
