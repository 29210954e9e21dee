package vhostuser

import (
	"errors"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// fdRoom is for how many descriptors there is room when a message is read. Those
// above it are cut off by the kernel, which closes them. A message that comes in
// pieces can bring as many with each, and may not have more in all either: an
// unfinished one is kept for as long as the front-end likes.
const fdRoom = 16

// message is one message as it came from the socket. It owns its descriptors.
type message struct {
	Header
	payload []byte
	fds     []int
}

// take hands descriptor i over to the caller.
func (m *message) take(i int) int {
	fd := m.fds[i]
	m.fds[i] = -1
	return fd
}

// close closes the descriptors that nobody has taken.
func (m *message) close() {
	closeFDs(m.fds)
	m.fds = nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// conn reads and writes messages on a stream socket. One goroutine reads.
type conn struct {
	c       *net.UnixConn
	payload [MaxPayload]byte
	oob     [64 + 4*fdRoom]byte
}

// read returns the next message. io.EOF is the end of the stream between two
// messages. Errors that wrap ErrProtocol mean that the stream makes no sense.
// Descriptors of a message that is not returned are closed.
func (c *conn) read() (*message, error) {
	m := new(message)
	var head [HeaderSize]byte
	if n, err := c.fill(head[:], m); err != nil {
		m.close()
		if err == io.EOF && n > 0 {
			return nil, violation("truncated", "stream ends inside a header")
		}
		return nil, err
	}
	var err error
	if m.Header, err = DecodeHeader(head[:]); err != nil {
		m.close()
		return nil, err
	}
	m.payload = c.payload[:m.Size]
	if _, err := c.fill(m.payload, m); err != nil {
		m.close()
		if err == io.EOF {
			return nil, violation("truncated", "stream ends inside %s", m.Request)
		}
		return nil, err
	}
	return m, nil
}

// fill reads exactly len(b) bytes, however many pieces they come in, and keeps
// the descriptors that come with any of them.
func (c *conn) fill(b []byte, m *message) (int, error) {
	got := 0
	for got < len(b) {
		n, oobn, flags, _, err := c.c.ReadMsgUnix(b[got:], c.oob[:])
		if oobn > 0 {
			if err := m.receive(c.oob[:oobn]); err != nil {
				return got, err
			}
		}
		if flags&unix.MSG_CTRUNC != 0 || len(m.fds) > fdRoom {
			return got, violation("descriptors", "more descriptors than any message has")
		}
		if n == 0 && err == nil || errors.Is(err, io.EOF) {
			return got, io.EOF // not in an OpError, for read to tell
		}
		if err != nil {
			return got, err
		}
		got += n
	}
	return got, nil
}

// receive adds the descriptors in oob to the message.
func (m *message) receive(oob []byte) error {
	cs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return violation("ancillary", "ancillary data: %w", err)
	}
	for i := range cs {
		fds, err := unix.ParseUnixRights(&cs[i])
		if err != nil {
			continue // not descriptors
		}
		m.fds = append(m.fds, fds...)
	}
	return nil
}

// write sends one message whole.
func (c *conn) write(h Header, payload []byte, fds []int) error {
	return writeMessage(c.c, h, payload, fds)
}

func writeMessage(c *net.UnixConn, h Header, payload []byte, fds []int) error {
	b := make([]byte, HeaderSize, HeaderSize+len(payload))
	h.Encode(b)
	b = append(b, payload...)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n, _, err := c.WriteMsgUnix(b, oob, nil)
	// The descriptors went with the first byte.
	for err == nil && n < len(b) {
		var more int
		more, err = c.Write(b[n:])
		n += more
	}
	return err
}
