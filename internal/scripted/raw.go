package scripted

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/vhostuser"
)

// Flags of messages.
const (
	Plain     = vhostuser.FlagVersion
	NeedReply = vhostuser.FlagVersion | vhostuser.FlagNeedReply
	Reply     = vhostuser.FlagVersion | vhostuser.FlagReply
)

// U64 is a payload of one number.
func U64(v uint64) []byte { return ne.AppendUint64(nil, v) }

// U32 is a payload of 32-bit numbers.
func U32(vs ...uint32) (b []byte) {
	for _, v := range vs {
		b = ne.AppendUint32(b, v)
	}
	return b
}

// AddrPayload is the payload of SET_VRING_ADDR, in front-end addresses.
func AddrPayload(index uint32, desc, used, avail uint64) []byte {
	b := U32(index, 0)
	for _, v := range []uint64{desc, used, avail, 0} {
		b = ne.AppendUint64(b, v)
	}
	return b
}

// TablePayload is the payload of SET_MEM_TABLE; n need not be how many there are.
func TablePayload(n uint32, regions ...guestmem.Region) []byte {
	b := U32(n, 0)
	for _, r := range regions {
		for _, v := range []uint64{r.GuestAddr, r.Size, r.UserAddr, r.Offset} {
			b = ne.AppendUint64(b, v)
		}
	}
	return b
}

// Tell sends a message that wants no reply.
func (g *Guest) Tell(r vhostuser.Request, payload []byte, fds ...int) {
	g.tb.Helper()
	g.Must(g.SendRaw(vhostuser.Header{Request: r, Flags: Plain, Size: uint32(len(payload))}, payload, fds))
}

// Ask sends a message with these flags and returns the payload of the reply, which
// has to be to this request.
func (g *Guest) Ask(r vhostuser.Request, flags uint32, payload []byte, fds ...int) []byte {
	g.tb.Helper()
	g.Must(g.SendRaw(vhostuser.Header{Request: r, Flags: flags, Size: uint32(len(payload))}, payload, fds))
	h, b, got, err := g.RecvRaw(time.Now().Add(Hang))
	if err != nil {
		g.tb.Fatalf("%s: %v", r, err)
	}
	for _, fd := range got {
		_ = unix.Close(fd)
	}
	if h.Request != r || h.Flags != Reply || len(got) != 0 {
		g.tb.Fatalf("%s: reply %+v with %d descriptors", r, h, len(got))
	}
	return b
}

// Code sends a message that wants to be confirmed and returns the answer, 0 if it
// was carried out.
func (g *Guest) Code(r vhostuser.Request, payload []byte, fds ...int) uint64 {
	g.tb.Helper()
	b := g.Ask(r, NeedReply, payload, fds...)
	if len(b) != 8 {
		g.tb.Fatalf("%s: confirmation of %d bytes", r, len(b))
	}
	return ne.Uint64(b)
}

// Accepted expects a message to be carried out.
func (g *Guest) Accepted(r vhostuser.Request, payload []byte, fds ...int) {
	g.tb.Helper()
	if code := g.Code(r, payload, fds...); code != 0 {
		g.tb.Errorf("%s: refused: % x", r, payload)
	}
}

// Refused expects a message to be refused, and the connection to go on.
func (g *Guest) Refused(r vhostuser.Request, payload []byte, fds ...int) {
	g.tb.Helper()
	if g.Code(r, payload, fds...) == 0 {
		g.tb.Errorf("%s: not refused: % x", r, payload)
	}
}

// InStep expects the next reply to be the one to the next question: there is
// none too many and none missing.
func (g *Guest) InStep() {
	g.tb.Helper()
	if _, err := g.GetQueueNum(); err != nil {
		g.tb.Fatal("replies are out of step:", err)
	}
}

// Ended expects the device to have closed the connection.
func (g *Guest) Ended() {
	g.tb.Helper()
	g.Must(g.Conn.SetReadDeadline(time.Now().Add(Hang)))
	n, err := g.Conn.Read(make([]byte, 1))
	if n != 0 || errors.Is(err, os.ErrDeadlineExceeded) || !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		g.tb.Fatalf("the connection is not closed: %d bytes, %v", n, err)
	}
}

// SendPiece sends bytes as they are, descriptors with the first of them, and
// waits until the device has read them: the next piece cannot come with them.
func (g *Guest) SendPiece(b []byte, fds ...int) {
	g.tb.Helper()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := g.Conn.WriteMsgUnix(b, oob, nil)
	g.Must(err)
	raw, err := g.Conn.SyscallConn()
	g.Must(err)
	Until(g.tb, "the device reads", func() bool {
		left := 0
		g.Must(raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) }))
		g.Must(err)
		return left == 0
	})
}

// Message is a whole message as it goes over the socket.
func Message(r vhostuser.Request, flags uint32, payload []byte) []byte {
	b := make([]byte, vhostuser.HeaderSize, vhostuser.HeaderSize+len(payload))
	vhostuser.Header{Request: r, Flags: flags, Size: uint32(len(payload))}.Encode(b)
	return append(b, payload...)
}
