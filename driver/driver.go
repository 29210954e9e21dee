package driver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

// Driver is a running virtio-net driver.
type Driver struct {
	cfg      Config
	conn     *net.UnixConn
	fe       *vhostuser.Frontend
	offer    virtio.Features
	features virtio.Features
	protocol vhostuser.ProtocolFeatures
	bases    []uint32      // of the paused rings
	log      *guestmem.Log // nil before StartLog
	logging  bool
	config   deviceConfig

	mem   *memory
	pairs []*Pair
	ctrl  *control
	rings []*queue
	// started counts the rings that must be stopped.
	started int

	// wake is an eventfd that ends all waits once it is written.
	wake    int
	closing atomic.Bool
}

// Pair is one queue pair.
type Pair struct {
	RX *RX
	TX *TX
	w  *waiter
}

// Wait flushes both halves and sleeps until a frame has arrived, or the device has
// given back three quarters of the frames it has, or timeout has passed; a
// negative timeout means for ever. It returns whether there is anything to do.
// The goroutine that calls it must be the only user of both halves.
func (p *Pair) Wait(timeout time.Duration) (bool, error) {
	p.TX.Flush()
	p.RX.recycleForWait()
	return p.w.wait(timeout)
}

// deviceConfig is what the driver reads from struct virtio_net_config.
type deviceConfig struct {
	mac      [6]byte
	status   uint16
	maxPairs int
	mtu      uint16
	speed    uint32
	duplex   uint8
	rssKey   int
	rssTable int
	hashes   uint32
}

// Dial connects to a back-end's socket and starts a driver on it.
func Dial(path string, cfg Config) (*Driver, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("driver: %w", err)
	}
	return New(conn, cfg)
}

// New negotiates over a connection to a back-end and starts all rings. The driver
// owns the connection from here on, also when New fails. Errors wrap ErrConfig
// where the configuration does not fit the device.
func New(conn *net.UnixConn, cfg Config) (*Driver, error) {
	d := &Driver{conn: conn, wake: -1}
	err := cfg.check()
	d.cfg = cfg
	if err == nil {
		err = d.start()
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Driver) start() error {
	d.fe = vhostuser.NewFrontend(d.conn)
	if err := d.negotiate(); err != nil {
		return err
	}
	if err := d.build(); err != nil {
		return err
	}
	if err := d.startRings(); err != nil {
		return err
	}
	if d.cfg.QueuePairs > 1 && d.features.Has(virtio.FeatureMQ) {
		if err := d.SetQueuePairs(d.cfg.QueuePairs); err != nil {
			return err
		}
	}
	d.cfg.Log.Debug("driver started", "queue_pairs", d.cfg.QueuePairs, "queue_size", d.cfg.QueueSize, "features", d.features.String())
	return nil
}

// build makes the guest memory and the virtqueues in it.
func (d *Driver) build() error {
	c := &d.cfg
	size := 2*c.QueuePairs*ringBytes(c.QueueSize) + c.QueuePairs*(txBytes(c)+rxBytes(c)) +
		controlBytes() + (maxRegions+1)*pageSize
	var err error
	if d.mem, err = newMemory(size); err != nil {
		return err
	}
	if d.wake, err = eventfd(); err != nil {
		return err
	}
	add := func(index, size int) (*queue, error) {
		q, err := newQueue(index, size, d.features, c.Polling, d.mem)
		if err == nil {
			d.rings = append(d.rings, q)
		}
		return q, err
	}
	for i := range 2 * c.QueuePairs {
		if _, err := add(i, c.QueueSize); err != nil {
			return err
		}
	}
	if d.features.Has(virtio.FeatureCtrlVQ) {
		q, err := add(d.controlIndex(), controlQueueSize)
		if err != nil {
			return err
		}
		d.ctrl = &control{q: q, timeout: c.ControlTimeout}
		d.ctrl.w = newWaiter(d, q)
	}
	d.mem.movable = d.mem.used
	if d.ctrl != nil {
		d.ctrl.out, d.ctrl.in = d.mem.alloc(controlOut), d.mem.alloc(controlIn)
	}
	for i := range c.QueuePairs {
		rx, tx := d.rings[2*i], d.rings[2*i+1]
		p := &Pair{RX: newRX(rx, c, d.features, d.mem), TX: newTX(tx, c, d.features, d.mem), w: newWaiter(d, rx, tx)}
		p.RX.w, p.TX.w = newWaiter(d, rx), newWaiter(d, tx)
		d.pairs = append(d.pairs, p)
	}
	return nil
}

// controlIndex is where the control queue is: behind all the pairs that the
// device has with MQ, and behind the first without.
func (d *Driver) controlIndex() int {
	if d.features&(virtio.FeatureMQ|virtio.FeatureRSS) != 0 {
		return 2 * d.config.maxPairs
	}
	return 2
}

// Features returns what was negotiated, Offer what the device offered.
func (d *Driver) Features() virtio.Features { return d.features }

// Offer returns the features that the device offered.
func (d *Driver) Offer() virtio.Features { return d.offer }

// ProtocolFeatures returns the vhost-user protocol features in use.
func (d *Driver) ProtocolFeatures() vhostuser.ProtocolFeatures { return d.protocol }

// Frontend returns the connection's front-end half, for requests that the driver
// does not make itself.
func (d *Driver) Frontend() *vhostuser.Frontend { return d.fe }

// QueuePairs returns the number of queue pairs.
func (d *Driver) QueuePairs() int { return len(d.pairs) }

// Pair returns a queue pair.
func (d *Driver) Pair(i int) *Pair { return d.pairs[i] }

// MAC returns the device's address, zero without VIRTIO_NET_F_MAC.
func (d *Driver) MAC() [6]byte { return d.config.mac }

// MTU returns the device's MTU in bytes, 0 without VIRTIO_NET_F_MTU.
func (d *Driver) MTU() uint16 { return d.config.mtu }

// RSSLimits returns the device's longest key in bytes, its longest indirection
// table in entries, and its hash types; zeros without RSS and HASH_REPORT.
func (d *Driver) RSSLimits() (key, table int, types uint32) {
	return d.config.rssKey, d.config.rssTable, d.config.hashes
}

// Speed returns the link's speed in Mbit/s and its duplex (1 is full); both have
// all bits set if unknown, and are zero without VIRTIO_NET_F_SPEED_DUPLEX.
func (d *Driver) Speed() (speed uint32, duplex uint8) { return d.config.speed, d.config.duplex }

// MaxQueuePairs returns how many queue pairs the device has.
func (d *Driver) MaxQueuePairs() int { return d.config.maxPairs }

// Counters returns the sum over all receive and over all transmit queues. Any
// goroutine may call it.
func (d *Driver) Counters() (rx, tx Counters) {
	for _, p := range d.pairs {
		rx.Add(p.RX.Counters())
		tx.Add(p.TX.Counters())
	}
	return rx, tx
}

// ControlCounters returns the control queue's counters.
func (d *Driver) ControlCounters() Counters {
	if d.ctrl == nil {
		return Counters{}
	}
	return d.ctrl.q.c.snapshot()
}

// Broken returns whether the device broke the rules on any virtqueue. Any
// goroutine may call it; the queue's Err says how.
func (d *Driver) Broken() bool {
	for _, q := range d.rings {
		if q.broken.Load() {
			return true
		}
	}
	return false
}

// Interrupt ends all waits, present and future, with ErrClosed.
func (d *Driver) Interrupt() {
	d.closing.Store(true)
	if d.wake >= 0 {
		var b [8]byte
		binary.NativeEndian.PutUint64(b[:], 1)
		_, _ = unix.Write(d.wake, b[:])
	}
}

// Close stops the rings, checking that the device got as far as it says, and
// frees everything. No goroutine may use a pair any more; Interrupt helps them
// to an end. It returns what went wrong while stopping, in which case everything
// is freed nevertheless.
func (d *Driver) Close() error {
	if d.conn == nil {
		return nil
	}
	d.Interrupt()
	err := d.stopRings()
	if cerr := d.conn.Close(); cerr != nil && err == nil {
		err = fmt.Errorf("driver: %w", cerr)
	}
	d.conn = nil
	for _, q := range d.rings {
		q.close()
	}
	if d.wake >= 0 {
		_ = unix.Close(d.wake)
		d.wake = -1
	}
	d.log.Release()
	d.log = nil
	if d.mem != nil {
		d.mem.close()
	}
	return err
}
