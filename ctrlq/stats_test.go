package ctrlq

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vhostnet/vhostnet/virtio"
)

// TestStats: the result stands behind the ack, whatever the room is split into, and
// is cut where the room ends.
func TestStats(t *testing.T) {
	entry := func(kind int, vq uint16) []byte {
		return request(kind, 0, vq, uint16(0), uint16(24), uint64(vq), uint64(kind))
	}
	query := request(8, 0)
	get := request(8, 1, uint64(0xffff_0000_0000_0000|5), uint64(3), uint64(2), uint64(0), uint64(7), uint64(1<<32))
	for _, tt := range []struct {
		req    []byte
		result []byte
		calls  []string
	}{
		{query, request(uint64(1<<32 | 3)), nil},
		{get, bytes.Join([][]byte{entry(0, 5), entry(1, 5), entry(32, 7)}, nil), []string{"stats 5 0", "stats 5 1", "stats 7 32"}},
	} {
		for _, split := range [][]int{{1, 200}, {201}, {3, 1, 1, 196}, {1}, {1, 8}, {1, 25}, {30}} {
			t.Run(fmt.Sprint(tt.req[1], split), func(t *testing.T) {
				room := 0
				for _, n := range split {
					room += n
				}
				want := append([]byte{virtio.CtrlOK}, tt.result...)
				want = want[:min(len(want), room)]
				var h recorder
				out := reply(split...)
				r := Dispatch(all, &h, tt.req, out)
				flat := bytes.Join(out, nil)
				if r.Err != nil || int(r.Written) != len(want) || !bytes.Equal(flat[:len(want)], want) || len(bytes.Trim(flat[len(want):], "\xee")) > 0 {
					t.Errorf("%+v\n%x, want\n%x", r, flat, want)
				}
				if diff := cmp.Diff(tt.calls, h.calls); diff != "" {
					t.Error(diff)
				}
				h = recorder{err: errors.New("no such queue")}
				out = reply(split...)
				for _, f := range []virtio.Features{all, virtio.FeatureCtrlVQ, virtio.FeatureDeviceStats} {
					if tt.calls == nil && f == all {
						continue
					}
					r = Dispatch(f, &h, tt.req, out)
					if flat := bytes.Join(out, nil); r.Err == nil || r.Written != 1 || flat[0] != virtio.CtrlErr || len(bytes.Trim(flat[1:], "\xee")) > 0 {
						t.Errorf("%s: %+v, %x", f, r, flat)
					}
				}
			})
		}
	}
}
