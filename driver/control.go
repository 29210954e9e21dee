package driver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vhostnet/vhostnet/virtio"
)

var (
	// ErrNoControl means that VIRTIO_NET_F_CTRL_VQ was not negotiated.
	ErrNoControl = errors.New("driver: no control queue")
	// ErrRefused means that the device answered VIRTIO_NET_ERR to a command.
	ErrRefused = errors.New("driver: command refused")
	// ErrTimeout means that the device did not answer a command in time. The
	// control queue is not used any more.
	ErrTimeout = errors.New("driver: control queue does not answer")
)

const (
	controlQueueSize = 64
	controlOut       = 1 << 17
	controlIn        = 1 << 12
	// controlPoison fills the reply before a command, so that what the device
	// did not write does not look like an answer.
	controlPoison = 0xa5
)

// control is the driver's side of the control queue. Its methods may be called
// from any goroutine.
type control struct {
	mu sync.Mutex
	// all below is guarded by mu
	q       *queue
	w       *waiter
	out, in area
	timeout time.Duration
	dead    error
}

func controlBytes() int { return ringBytes(controlQueueSize) + controlOut + controlIn + 2*cacheLine }

// Command sends a control command, class and command byte first, and waits for
// its acknowledgement. The device's answer is put into reply and the byte after
// it is the acknowledgement, as in virtio 1.4, "Control Virtqueue". It returns
// the acknowledgement and how many bytes the device wrote.
//
// Acknowledgements other than VIRTIO_NET_OK are not an error here.
func (d *Driver) Command(req, reply []byte) (ack uint8, written uint32, err error) {
	var b [1]byte
	in := [][]byte{b[:]}
	if len(reply) > 0 {
		in = [][]byte{reply, b[:]}
	}
	written, err = d.CommandSegments([][]byte{req}, in)
	return b[0], written, err
}

// CommandSegments sends a control command over exactly these segments, one
// descriptor each, which may be empty, and copies back what the device wrote.
// Bytes that the device left alone read as 0xa5.
func (d *Driver) CommandSegments(out, in [][]byte) (written uint32, err error) {
	c := d.ctrl
	if c == nil {
		return 0, ErrNoControl
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead != nil {
		return 0, c.dead
	}
	if err := c.fill(out, in); err != nil {
		return 0, err
	}
	c.q.offer(0)
	c.q.publish()
	written, err = c.answer()
	if err != nil {
		c.dead = err
		return 0, err
	}
	off := 0
	for _, s := range in {
		off += copy(s, c.in.b[off:])
	}
	return written, nil
}

// fill describes the segments with a chain that starts at descriptor 0.
func (c *control) fill(out, in [][]byte) error {
	n := len(out) + len(in)
	if n == 0 || n > c.q.size {
		return fmt.Errorf("%w: command over %d segments: want 1 to %d", ErrConfig, n, c.q.size)
	}
	i := 0
	add := func(a area, off, length int, flags uint16) {
		next := uint16(i + 1)
		if i < n-1 {
			flags |= virtio.DescFNext
		} else {
			next = 0
		}
		setDesc(c.q.desc, i, a.guest()+uint64(off), uint32(length), flags, next)
		i++
	}
	off := 0
	for _, s := range out {
		if len(s) > len(c.out.b)-off {
			return fmt.Errorf("%w: command longer than %d bytes", ErrConfig, len(c.out.b))
		}
		copy(c.out.b[off:], s)
		add(c.out, off, len(s), 0)
		off += len(s)
	}
	off = 0
	for _, s := range in {
		if len(s) > len(c.in.b)-off {
			return fmt.Errorf("%w: reply longer than %d bytes", ErrConfig, len(c.in.b))
		}
		for j := range s {
			c.in.b[off+j] = controlPoison
		}
		add(c.in, off, len(s), virtio.DescFWrite)
		off += len(s)
	}
	return nil
}

func (c *control) answer() (written uint32, err error) {
	ready, err := c.w.wait(c.timeout)
	if err != nil {
		return 0, err
	}
	if !ready {
		return 0, ErrTimeout
	}
	_, written, ok := c.q.take()
	if !ok {
		return 0, c.q.err
	}
	c.q.c.completed.add(1)
	return written, nil
}

// do sends a command and makes a refusal an error.
func (d *Driver) do(class, command uint8, data []byte) error {
	ack, _, err := d.Command(append([]byte{class, command}, data...), nil)
	switch {
	case err != nil:
		return err
	case ack != virtio.CtrlOK:
		return fmt.Errorf("%w: class %d command %d: %d", ErrRefused, class, command, ack)
	}
	return nil
}

// RXMode is a receive mode (virtio 1.4, "Packet Receive Filtering").
type RXMode uint8

// Receive modes. The values are those of the commands.
const (
	Promiscuous RXMode = iota
	AllMulticast
	AllUnicast
	NoMulticast
	NoUnicast
	NoBroadcast
)

// SetRXMode switches a receive mode on or off.
func (d *Driver) SetRXMode(m RXMode, on bool) error {
	b := byte(0)
	if on {
		b = 1
	}
	return d.do(virtio.CtrlRX, uint8(m), []byte{b})
}

// SetMACTable sets the addresses that pass the receive filter.
func (d *Driver) SetMACTable(unicast, multicast [][6]byte) error {
	var b []byte
	for _, table := range [][][6]byte{unicast, multicast} {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(table)))
		for _, a := range table {
			b = append(b, a[:]...)
		}
	}
	return d.do(virtio.CtrlMAC, virtio.CtrlMACTableSet, b)
}

// SetMAC changes the device's own address.
func (d *Driver) SetMAC(mac [6]byte) error {
	return d.do(virtio.CtrlMAC, virtio.CtrlMACAddrSet, mac[:])
}

// AddVLAN lets frames with a VLAN id pass the receive filter.
func (d *Driver) AddVLAN(id uint16) error {
	return d.do(virtio.CtrlVLAN, virtio.CtrlVLANAdd, le16(id))
}

// DelVLAN takes a VLAN id out of the receive filter.
func (d *Driver) DelVLAN(id uint16) error {
	return d.do(virtio.CtrlVLAN, virtio.CtrlVLANDel, le16(id))
}

// AckAnnounce acknowledges the device's request to announce the guest.
func (d *Driver) AckAnnounce() error {
	return d.do(virtio.CtrlAnnounce, virtio.CtrlAnnounceAck, nil)
}

// SetQueuePairs tells the device how many queue pairs the driver uses.
func (d *Driver) SetQueuePairs(n int) error {
	return d.do(virtio.CtrlMQ, virtio.CtrlMQVQPairsSet, le16(uint16(n)))
}

// RSS is a configuration of receive steering. Table has a queue pair for each hash
// modulo its length, which is a power of two; Unclassified is for frames without
// one. MaxTX is how many transmit queues are used. Types are hash types.
type RSS struct {
	Types        uint32
	Table        []uint16
	Unclassified uint16
	MaxTX        uint16
	Key          []byte
}

// SetRSS steers received frames.
func (d *Driver) SetRSS(r RSS) error {
	b := binary.LittleEndian.AppendUint32(nil, r.Types)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(r.Table)-1))
	b = binary.LittleEndian.AppendUint16(b, r.Unclassified)
	for _, q := range r.Table {
		b = binary.LittleEndian.AppendUint16(b, q)
	}
	b = binary.LittleEndian.AppendUint16(b, r.MaxTX)
	b = append(append(b, byte(len(r.Key))), r.Key...)
	return d.do(virtio.CtrlMQ, virtio.CtrlMQRSSConfig, b)
}

// SetHash sets what the device hashes for its reports, and with which key.
func (d *Driver) SetHash(types uint32, key []byte) error {
	b := append(binary.LittleEndian.AppendUint32(nil, types), make([]byte, 8)...)
	return d.do(virtio.CtrlMQ, virtio.CtrlMQHashConfig, append(append(b, byte(len(key))), key...))
}

// SetGuestOffloads switches receive offloads; bits as in virtio.GuestOffloads.
func (d *Driver) SetGuestOffloads(bits uint64) error {
	return d.do(virtio.CtrlGuestOffloads, virtio.CtrlGuestOffloadsSet, binary.LittleEndian.AppendUint64(nil, bits))
}

// SetTXCoalesce sets the notification limits of all transmit queues, in
// microseconds and packets.
func (d *Driver) SetTXCoalesce(usecs, packets uint32) error {
	return d.do(virtio.CtrlNotfCoal, virtio.CtrlNotfCoalTXSet, coal(nil, usecs, packets))
}

// SetRXCoalesce sets the notification limits of all receive queues, in
// microseconds and packets.
func (d *Driver) SetRXCoalesce(usecs, packets uint32) error {
	return d.do(virtio.CtrlNotfCoal, virtio.CtrlNotfCoalRXSet, coal(nil, usecs, packets))
}

// SetVQCoalesce sets the notification limits of one virtqueue: 2i receives and
// 2i+1 transmits for queue pair i.
func (d *Driver) SetVQCoalesce(vq uint16, usecs, packets uint32) error {
	return d.do(virtio.CtrlNotfCoal, virtio.CtrlNotfCoalVQSet, coal(append(le16(vq), 0, 0), usecs, packets))
}

// VQCoalesce asks for the notification limits of one virtqueue.
func (d *Driver) VQCoalesce(vq uint16) (usecs, packets uint32, err error) {
	var reply [8]byte
	req := append([]byte{virtio.CtrlNotfCoal, virtio.CtrlNotfCoalVQGet}, le16(vq)...)
	ack, written, err := d.Command(append(req, 0, 0), reply[:])
	switch {
	case err != nil:
		return 0, 0, err
	case ack != virtio.CtrlOK:
		return 0, 0, fmt.Errorf("%w: VQ_GET of virtqueue %d: %d", ErrRefused, vq, ack)
	case int(written) != len(reply)+1:
		return 0, 0, fmt.Errorf("%w: VQ_GET of virtqueue %d wrote %d bytes, want %d", ErrDevice, vq, written, len(reply)+1)
	}
	return binary.LittleEndian.Uint32(reply[4:]), binary.LittleEndian.Uint32(reply[:]), nil
}

// coal appends a struct virtio_net_ctrl_coal: packets first.
func coal(b []byte, usecs, packets uint32) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, packets), usecs)
}

func le16(v uint16) []byte { return binary.LittleEndian.AppendUint16(nil, v) }
