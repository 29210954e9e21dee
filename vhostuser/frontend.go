package vhostuser

import (
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// NackError says that the back-end has refused a request.
type NackError struct {
	Request Request
	// Code is the back-end's answer, never 0.
	Code uint64
}

func (e *NackError) Error() string {
	return fmt.Sprintf("vhostuser: %s: refused by the back-end (%#x)", e.Request, e.Code)
}

// Frontend is the front-end half of a connection. Once REPLY_ACK is negotiated
// each request waits for the back-end to confirm it, and returns a [*NackError]
// if it does not. It belongs to one goroutine.
type Frontend struct {
	conn
	proto ProtocolFeatures
}

// NewFrontend returns the front-end half of a connection.
func NewFrontend(c *net.UnixConn) *Frontend { return &Frontend{conn: conn{c: c}} }

// Close closes the connection.
func (f *Frontend) Close() error { return f.c.Close() }

// SendRaw sends a message as it stands, also one that breaks the rules: the
// header's size need not be the payload's. For tests.
func (f *Frontend) SendRaw(h Header, payload []byte, fds []int) error {
	return f.write(h, payload, fds)
}

// RecvRaw reads one message. The payload is the caller's, and so are the
// descriptors. The zero deadline is none.
func (f *Frontend) RecvRaw(deadline time.Time) (Header, []byte, []int, error) {
	if err := f.c.SetReadDeadline(deadline); err != nil {
		return Header{}, nil, nil, err
	}
	m, err := f.read()
	if err != nil {
		return Header{}, nil, nil, err
	}
	return m.Header, slices.Clone(m.payload), m.fds, nil
}

// send sends a request; it waits for a confirmation if there is one to come.
func (f *Frontend) send(r Request, payload []byte, fds ...int) error {
	h := Header{r, FlagVersion, uint32(len(payload))}
	ack := f.proto&ProtocolReplyAck != 0
	if ack {
		h.Flags |= FlagNeedReply
	}
	if err := f.write(h, payload, fds); err != nil || !ack {
		return err
	}
	b, err := f.receive(r)
	if err != nil {
		return err
	}
	if len(b) != 8 {
		return fmt.Errorf("%w: %s: confirmation of %d bytes", ErrProtocol, r, len(b))
	}
	if code := ne.Uint64(b); code != 0 {
		return &NackError{r, code}
	}
	return nil
}

// ask sends a request that has a reply of its own.
func (f *Frontend) ask(r Request, payload []byte) ([]byte, error) {
	if err := f.write(Header{r, FlagVersion, uint32(len(payload))}, payload, nil); err != nil {
		return nil, err
	}
	return f.receive(r)
}

func (f *Frontend) receive(r Request) ([]byte, error) {
	m, err := f.read()
	if err != nil {
		return nil, err
	}
	defer m.close()
	if m.Request != r || m.Flags&FlagReply == 0 {
		return nil, fmt.Errorf("%w: %s (flags %#x) in reply to %s", ErrProtocol, m.Request, m.Flags, r)
	}
	return slices.Clone(m.payload), nil
}

func (f *Frontend) askU64(r Request) (uint64, error) {
	b, err := f.ask(r, nil)
	if err != nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, fmt.Errorf("%w: %s: reply of %d bytes", ErrProtocol, r, len(b))
	}
	return ne.Uint64(b), nil
}

// GetFeatures returns the virtio features on offer.
func (f *Frontend) GetFeatures() (virtio.Features, error) {
	v, err := f.askU64(ReqGetFeatures)
	return virtio.Features(v), err
}

// SetFeatures tells which features were negotiated.
func (f *Frontend) SetFeatures(v virtio.Features) error {
	return f.send(ReqSetFeatures, u64(uint64(v)))
}

// SetOwner begins a session.
func (f *Frontend) SetOwner() error { return f.send(ReqSetOwner, nil) }

// ResetOwner is deprecated; the back-end disables all rings.
func (f *Frontend) ResetOwner() error { return f.send(ReqResetOwner, nil) }

// GetProtocolFeatures returns the protocol features on offer.
func (f *Frontend) GetProtocolFeatures() (ProtocolFeatures, error) {
	v, err := f.askU64(ReqGetProtocolFeatures)
	return ProtocolFeatures(v), err
}

// SetProtocolFeatures tells which protocol features were negotiated.
func (f *Frontend) SetProtocolFeatures(p ProtocolFeatures) error {
	// What is taken back is not used any more, for this request neither: without
	// REPLY_ACK no confirmation of it would come.
	f.proto &= p
	if err := f.send(ReqSetProtocolFeatures, u64(uint64(p))); err != nil {
		return err
	}
	f.proto = p
	return nil
}

// GetQueueNum returns how many queues the back-end says it has.
func (f *Frontend) GetQueueNum() (uint64, error) { return f.askU64(ReqGetQueueNum) }

func appendRegion(b []byte, r guestmem.Region) []byte {
	b = ne.AppendUint64(b, r.GuestAddr)
	b = ne.AppendUint64(b, r.Size)
	b = ne.AppendUint64(b, r.UserAddr)
	return ne.AppendUint64(b, r.Offset)
}

// SetMemTable shares memory; fds[i] is the file of regions[i].
func (f *Frontend) SetMemTable(regions []guestmem.Region, fds []int) error {
	b := ne.AppendUint32(nil, uint32(len(regions)))
	b = ne.AppendUint32(b, 0)
	for _, r := range regions {
		b = appendRegion(b, r)
	}
	return f.send(ReqSetMemTable, b, fds...)
}

// GetMaxMemSlots returns how many regions the back-end can map.
func (f *Frontend) GetMaxMemSlots() (uint64, error) { return f.askU64(ReqGetMaxMemSlots) }

// AddMemRegion shares one region more.
func (f *Frontend) AddMemRegion(r guestmem.Region, fd int) error {
	return f.send(ReqAddMemReg, appendRegion(u64(0), r), fd)
}

// RemMemRegion takes one region back.
func (f *Frontend) RemMemRegion(r guestmem.Region) error {
	return f.send(ReqRemMemReg, appendRegion(u64(0), r))
}

func vringState(i int, num uint32) []byte {
	return ne.AppendUint32(ne.AppendUint32(nil, uint32(i)), num)
}

// SetVringNum sets the size of ring i.
func (f *Frontend) SetVringNum(i, size int) error {
	return f.send(ReqSetVringNum, vringState(i, uint32(size)))
}

// SetVringBase sets the next available index of ring i.
func (f *Frontend) SetVringBase(i int, base uint32) error {
	return f.send(ReqSetVringBase, vringState(i, base))
}

// SetVringAddr sets where the descriptor table, the available ring and the used
// ring of ring i are in the front-end's memory.
func (f *Frontend) SetVringAddr(i int, desc, avail, used uint64) error {
	return f.setVringAddr(i, 0, desc, avail, used, 0)
}

// SetVringAddrLog is SetVringAddr for a ring the writes to which are to be logged,
// those to its used ring as if that were at guest address log.
func (f *Frontend) SetVringAddrLog(i int, desc, avail, used, log uint64) error {
	return f.setVringAddr(i, addrFlagLog, desc, avail, used, log)
}

func (f *Frontend) setVringAddr(i int, flags uint32, desc, avail, used, log uint64) error {
	b := vringState(i, flags)
	for _, v := range []uint64{desc, used, avail, log} {
		b = ne.AppendUint64(b, v)
	}
	return f.send(ReqSetVringAddr, b)
}

// SetLogBase gives the back-end a dirty log of size bytes, at an offset in a file.
// Once LOG_SHMFD is negotiated it waits for the reply.
func (f *Frontend) SetLogBase(fd int, size, offset uint64) error {
	b := ne.AppendUint64(u64(size), offset)
	if f.proto&ProtocolLogSHMFD == 0 {
		return f.send(ReqSetLogBase, b, fd)
	}
	err := f.write(Header{ReqSetLogBase, FlagVersion, uint32(len(b))}, b, []int{fd})
	if err != nil {
		return err
	}
	if b, err = f.receive(ReqSetLogBase); err != nil {
		return err
	}
	// Some back-ends reply with nothing.
	if len(b) == 8 && ne.Uint64(b) != 0 {
		return &NackError{ReqSetLogBase, ne.Uint64(b)}
	}
	return nil
}

// SetLogFD gives the back-end a descriptor to signal when it has logged something.
func (f *Frontend) SetLogFD(fd int) error { return f.send(ReqSetLogFD, nil, fd) }

// GetVringBase stops ring i and returns its next available index.
func (f *Frontend) GetVringBase(i int) (uint32, error) {
	b, err := f.ask(ReqGetVringBase, vringState(i, 0))
	switch {
	case err != nil:
		return 0, err
	case len(b) != stateSize || ne.Uint32(b) != uint32(i):
		return 0, fmt.Errorf("%w: %s: reply % x for ring %d", ErrProtocol, ReqGetVringBase, b, i)
	}
	return ne.Uint32(b[4:]), nil
}

func (f *Frontend) sendFD(r Request, i, fd int) error {
	if fd < 0 {
		return f.send(r, u64(uint64(i)|noFD))
	}
	return f.send(r, u64(uint64(i)), fd)
}

// SetVringKick gives the back-end the kick descriptor of ring i, -1 for none, and
// starts the ring.
func (f *Frontend) SetVringKick(i, fd int) error { return f.sendFD(ReqSetVringKick, i, fd) }

// SetVringCall gives the back-end the call descriptor of ring i, -1 for none.
func (f *Frontend) SetVringCall(i, fd int) error { return f.sendFD(ReqSetVringCall, i, fd) }

// SetVringErr gives the back-end the error descriptor of ring i, -1 for none.
func (f *Frontend) SetVringErr(i, fd int) error { return f.sendFD(ReqSetVringErr, i, fd) }

// SetVringEnable enables or disables ring i.
func (f *Frontend) SetVringEnable(i int, on bool) error {
	num := uint32(0)
	if on {
		num = 1
	}
	return f.send(ReqSetVringEnable, vringState(i, num))
}

func configPayload(off uint32, flags uint32, data []byte) []byte {
	b := ne.AppendUint32(nil, off)
	b = ne.AppendUint32(b, uint32(len(data)))
	return append(ne.AppendUint32(b, flags), data...)
}

// GetConfig returns n bytes of the configuration space.
func (f *Frontend) GetConfig(off, n uint32) ([]byte, error) {
	b, err := f.ask(ReqGetConfig, configPayload(off, 0, make([]byte, n)))
	switch {
	case err != nil:
		return nil, err
	case len(b) == 0:
		return nil, &NackError{ReqGetConfig, 1}
	case len(b) != configHead+int(n):
		return nil, fmt.Errorf("%w: %s: reply of %d bytes", ErrProtocol, ReqGetConfig, len(b))
	}
	return b[configHead:], nil
}

// SetConfig writes to the configuration space.
func (f *Frontend) SetConfig(off, flags uint32, data []byte) error {
	return f.send(ReqSetConfig, configPayload(off, flags, data))
}

// SetStatus sets the device status.
func (f *Frontend) SetStatus(s uint8) error { return f.send(ReqSetStatus, u64(uint64(s))) }

// GetStatus returns the device status.
func (f *Frontend) GetStatus() (uint8, error) {
	v, err := f.askU64(ReqGetStatus)
	return uint8(v), err
}

// ResetDevice resets the device.
func (f *Frontend) ResetDevice() error { return f.send(ReqResetDevice, nil) }

// SetMTU tells the MTU in bytes.
func (f *Frontend) SetMTU(mtu uint64) error { return f.send(ReqNetSetMTU, u64(mtu)) }

// SendRARP asks the back-end to announce mac.
func (f *Frontend) SendRARP(mac [6]byte) error {
	return f.send(ReqSendRARP, append(mac[:], 0, 0))
}

// SetBackendReqFD gives the back-end a socket for requests of its own.
func (f *Frontend) SetBackendReqFD(fd int) error { return f.send(ReqSetBackendReqFD, nil, fd) }
