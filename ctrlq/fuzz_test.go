package ctrlq

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/vhostnet/vhostnet/virtio"
)

// needs maps the first word of a recorded call to the feature that it takes.
var needs = map[string]virtio.Features{
	"promisc": virtio.FeatureCtrlRX, "allmulti": virtio.FeatureCtrlRX, "table": virtio.FeatureCtrlRX,
	"alluni": virtio.FeatureCtrlRXExtra, "nomulti": virtio.FeatureCtrlRXExtra,
	"nouni": virtio.FeatureCtrlRXExtra, "nobcast": virtio.FeatureCtrlRXExtra,
	"mac": virtio.FeatureCtrlMACAddr, "vlan+": virtio.FeatureCtrlVLAN, "vlan-": virtio.FeatureCtrlVLAN,
	"announced": virtio.FeatureGuestAnnounce, "pairs": virtio.FeatureMQ,
	"rss": virtio.FeatureRSS, "hash": virtio.FeatureHashReport,
	"offloads": virtio.FeatureCtrlGuestOffloads,
	"tx":       virtio.FeatureNotfCoal, "rx": virtio.FeatureNotfCoal,
}

func FuzzDispatch(f *testing.F) {
	for _, c := range commands {
		f.Add(uint64(all), c.req, []byte{8, 1}, false)
		f.Add(uint64(virtio.FeatureCtrlVQ), c.req, []byte{1}, false)
		f.Add(uint64(c.need|virtio.FeatureCtrlVQ), c.req, []byte{1, 8}, true)
		f.Add(uint64(all), append(bytes.Clone(c.req), 0), []byte{3, 3, 3}, false)
	}
	f.Add(uint64(all), []byte{}, []byte{9}, false)
	f.Add(uint64(all), []byte{8, 0}, []byte{1, 8}, false)
	f.Add(uint64(all), request(8, 1, uint64(3), uint64(3), uint64(2), uint64(1<<32)), []byte{60, 60}, false)
	f.Add(uint64(all), []byte{6, 3, 0, 0}, []byte{}, false)
	f.Add(uint64(all), []byte{1, 0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5, 6}, []byte{0, 0, 4}, false)
	f.Fuzz(func(t *testing.T, features uint64, req, split []byte, refuse bool) {
		if len(split) > 64 {
			split = split[:64]
		}
		sizes := make([]int, len(split))
		room := 0
		for i, n := range split {
			sizes[i] = int(n)
			room += int(n)
		}
		h := &recorder{}
		if refuse {
			h.err = errors.New("refused")
		}
		nf := virtio.Features(features)
		out := reply(sizes...)
		r := Dispatch(nf, h, req, out)
		if int(r.Written) > room {
			t.Fatalf("%d bytes written into %d", r.Written, room)
		}
		if (room > 0) != (r.Written > 0) {
			t.Fatalf("%d bytes written into %d", r.Written, room)
		}
		if r.Ack != virtio.CtrlOK && r.Ack != virtio.CtrlErr || r.Ack == virtio.CtrlErr && r.Err == nil {
			t.Fatalf("result %+v", r)
		}
		if len(req) > 0 && req[0] == virtio.CtrlStats {
			// The recorder is asked several times, and what is behind the answer is
			// left alone.
			if flat := bytes.Join(out, nil); room > 0 && (flat[0] != r.Ack || len(bytes.Trim(flat[r.Written:], "\xee")) > 0) {
				t.Fatalf("ack %d, %d bytes written: %x", r.Ack, r.Written, flat)
			}
			if (len(h.calls) > 0 || r.Err == nil) && !nf.Has(virtio.FeatureDeviceStats|virtio.FeatureCtrlVQ) {
				t.Fatalf("calls %q with %s", h.calls, nf)
			}
			return
		}
		// One byte of the room is the ack; nothing behind the answer changes.
		flat := bytes.Join(out, nil)
		if room > 0 && flat[0] != r.Ack && (room < 9 || flat[8] != r.Ack) {
			t.Fatalf("no ack %d in %x", r.Ack, flat)
		}
		if room > 9 && len(bytes.Trim(flat[9:], "\xee")) > 0 {
			t.Fatalf("written behind the answer: %x", flat)
		}
		if len(h.calls) > 1 {
			t.Fatalf("calls %q", h.calls)
		}
		if (len(h.calls) == 1 && !refuse) != (r.Err == nil) {
			t.Fatalf("calls %q, result %+v", h.calls, r)
		}
		for _, c := range h.calls {
			word, _, _ := strings.Cut(c, " ")
			need, known := needs[word]
			if !known && strings.HasPrefix(word, "vq") {
				need, known = virtio.FeatureVQNotfCoal, true
			}
			if !known || !nf.Has(need|virtio.FeatureCtrlVQ) {
				t.Fatalf("call %q with %s", c, nf)
			}
		}
	})
}
