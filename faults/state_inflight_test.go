package faults

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/vhostuser"
)

// inflight is the payload of GET_INFLIGHT_FD and SET_INFLIGHT_FD, in any case.
func inflight(size, offset uint64, queues, entries uint16) []byte {
	b := append(scripted.U64(size), scripted.U64(offset)...)
	b = binary.NativeEndian.AppendUint16(b, queues)
	return binary.NativeEndian.AppendUint16(b, entries)
}

// reply sends a message that wants a reply and returns the one reply, which may
// have descriptors.
func reply(t *testing.T, g *scripted.Guest, r vhostuser.Request, payload []byte, fds ...int) ([]byte, []int) {
	t.Helper()
	g.Must(g.SendRaw(vhostuser.Header{Request: r, Flags: scripted.NeedReply, Size: uint32(len(payload))}, payload, fds))
	h, b, got, err := g.RecvRaw(deadline())
	if err != nil || h.Request != r || h.Flags != scripted.Reply {
		t.Fatalf("%s: reply %+v, %v", r, h, err)
	}
	g.InStep()
	return b, got
}

// refusal tells whether a reply says that the request was not carried out: a code,
// nothing, or for GET_INFLIGHT_FD no buffer.
func refusal(r vhostuser.Request, b []byte, fds []int) bool {
	switch {
	case len(fds) > 0:
		return false
	case len(b) == 8:
		return binary.NativeEndian.Uint64(b) != 0
	case r == vhostuser.ReqGetInflightFD && len(b) == 20:
		return binary.NativeEndian.Uint64(b) == 0
	}
	return len(b) == 0
}

// P15: inflight buffers can be asked for, and given, without end. A device without
// them refuses both messages; either way nothing is left.
func TestP15Inflight(t *testing.T) {
	t.Parallel()
	c := scripted.Serve(t, "echo")
	g := c.Dial(t)
	g.Hello(0)
	offer, err := g.GetProtocolFeatures()
	g.Must(err)
	offered := offer&vhostuser.ProtocolInflightSHMFD != 0
	refused := func(r vhostuser.Request, payload []byte, fds ...int) {
		t.Helper()
		b, got := reply(t, g, r, payload, fds...)
		for _, fd := range got {
			_ = unix.Close(fd)
		}
		if !refusal(r, b, got) {
			t.Errorf("%s % x: not refused: % x with %d descriptors", r, payload, b, len(got))
		}
	}
	const get, set = vhostuser.ReqGetInflightFD, vhostuser.ReqSetInflightFD
	file := scripted.Memfd(t, 0x1000)
	var before int
	for i := range 500 {
		b, fds := reply(t, g, get, inflight(0, 0, 2, 256))
		switch {
		case !offered:
			if !refusal(get, b, fds) {
				t.Fatalf("not offered and not refused: % x with %d descriptors", b, len(fds))
			}
		case len(b) != 20 || len(fds) != 1:
			t.Fatalf("reply % x with %d descriptors", b, len(fds))
		default:
			var st unix.Stat_t
			g.Must(unix.Fstat(fds[0], &st))
			size, off := binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint64(b[8:])
			// At least a byte for each entry.
			if size < 2*256 || off+size > uint64(st.Size) {
				t.Fatalf("a buffer of %d bytes at %d in a file of %d", size, off, st.Size)
			}
			g.Accepted(set, b, fds[0])
			refused(set, inflight(64, off, 2, 256), fds[0])
			refused(set, inflight(size, off+uint64(st.Size), 2, 256), fds[0])
			refused(set, inflight(size, ^uint64(0)-0xFFF, 2, 256), fds[0])
			refused(set, b)
			g.Must(unix.Close(fds[0]))
		}
		if i == 0 {
			before = c.FDs()
		}
	}
	for _, queues := range []uint16{0, 65535} {
		refused(get, inflight(0, 0, queues, 256))
		refused(set, inflight(0x1000, 0, queues, 256), file)
	}
	for _, entries := range []uint16{0, 65535} {
		refused(get, inflight(0, 0, 2, entries))
		refused(set, inflight(0x1000, 0, 2, entries), file)
	}
	refused(set, inflight(16, 0, 2, 256), file)
	refused(set, inflight(^uint64(0), 0, 2, 256), file)
	refused(set, inflight(0x2000, 0x1000, 2, 256), file) // behind the file's end
	refused(set, inflight(0x1000, 0, 2, 256), file, file)
	if after := c.FDs(); after != before {
		t.Errorf("%d descriptors, had %d", after, before)
	}
	g.Start(0, 1)
	c.RoundTrip(g)
	c.Alive(g)
}
