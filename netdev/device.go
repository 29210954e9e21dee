package netdev

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/ctrlq"
	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/toeplitz"
	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

// Device is a virtio-net device. It implements [vhostuser.Backend]; those
// methods belong to one session at a time. Snapshot and Close may be called
// from anywhere.
type Device struct {
	cfg      Config
	port     port.Port
	log      *slog.Logger
	offered  virtio.Features
	pairs    []*worker
	control  *controller
	counters []queueCounters // by virtqueue index
	sessions vhostuser.Counters

	// mu guards what follows, and is held over a whole change of state,
	// including what is posted to the workers of the queue pairs, so that the
	// session and the control queue do not interleave. The workers never take
	// it. The control worker does: nothing is posted to it under mu.
	mu       sync.Mutex
	features virtio.Features
	refused  error // what is wrong with the features that were set last
	proto    vhostuser.ProtocolFeatures
	status   uint8
	mem      *guestmem.Map
	dirty    *guestmem.Log // nil while nothing is logged
	rings    []ringState
	running  int    // rings that are started
	active   []bool // the port's queues that are attached
	config   virtio.NetConfig
	channel  *vhostuser.BackendChannel
	connects uint64
	online   bool
	guest    guestState
	specs    []coalesce.EngineSpec // the host's policy by virtqueue
	steered  bool                  // the port has been told how to steer
	steering string                // who steers, for the snapshot
}

// ringState is what the session knows of a ring.
type ringState struct {
	started, enabled bool
	size             int
	// call and err are owned by the session, -1 for none.
	call, err int
	// stoppedSinceDisable: the ring has been stopped since it was last
	// disabled, so that enabling it resumes it rather than re-enables it.
	stoppedSinceDisable bool
}

// guestState is what the driver has set through the control queue. It lives
// until the driver resets the device.
type guestState struct {
	coalesce *coalesce.Settings
	// pairs is the number of queue pairs that the driver uses.
	pairs    int
	filter   *ctrlq.Filter
	offloads virtio.Features
	mac      [6]byte
	// steer is how received frames are hashed and steered, nil if they are not.
	steer *steering
}

var _ vhostuser.Backend = (*Device)(nil)

// New makes a device on a port and starts its workers. The device owns the
// port from then on and closes it in Close, or on error.
func New(cfg Config, p port.Port) (*Device, error) {
	d, err := build(cfg, p)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return d, nil
}

func build(cfg Config, p port.Port) (*Device, error) {
	if err := cfg.check(p); err != nil {
		return nil, err
	}
	offered, err := cfg.offer(p)
	if err != nil {
		return nil, err
	}
	n := cfg.QueuePairs
	d := &Device{
		cfg: cfg, port: p, offered: offered,
		log:      cfg.Log.With("device", cfg.Name),
		mem:      guestmem.Empty(),
		rings:    make([]ringState, 2*n+1),
		counters: make([]queueCounters, 2*n+1),
		active:   make([]bool, n),
	}
	d.config = virtio.NetConfig{
		MAC: cfg.MAC, Status: virtio.NetStatusLinkUp,
		MaxVirtqueuePairs: uint16(n), MTU: uint16(cfg.MTU),
	}
	if cfg.Speed != 0 {
		// Linux takes 1 for full, as the field's description says; the normative
		// text has it the other way round.
		d.config.Speed, d.config.Duplex = uint32(cfg.Speed), 1
	}
	if offered&(virtio.FeatureRSS|virtio.FeatureHashReport) != 0 {
		d.config.RSSMaxKeySize = uint8(cfg.RSSKey)
		d.config.RSSMaxIndirectionTableLength = uint16(cfg.RSSTable)
		d.config.SupportedHashTypes = toeplitz.All
	}
	for i := range d.rings {
		d.rings[i].call, d.rings[i].err = -1, -1
	}
	d.guest.coalesce = coalesce.NewSettings(n)
	d.specs = cfg.engineSpecs()
	for i := range n {
		w := newWorker(i, p.Queue(i), &d.counters[2*i], &d.counters[2*i+1], &d.cfg, d.log)
		d.pairs = append(d.pairs, w)
		if err := cfg.Pool.place(w); err != nil {
			d.stopWorkers()
			return nil, err
		}
	}
	if d.control, err = newController(d, &d.counters[2*n]); err != nil {
		d.stopWorkers()
		return nil, err
	}
	if cfg.MTU != 0 {
		if err := d.setPortMTU(cfg.MTU); err != nil {
			d.stopWorkers()
			return nil, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.specs {
		if err := d.applyEngine(i); err != nil {
			d.stopWorkers()
			return nil, err
		}
	}
	d.resetGuestLocked()
	d.idlePort()
	if p, ok := d.port.(port.LinkState); ok {
		if err := p.WatchLink(d.linkChanged); err != nil {
			d.log.Warn("the port's link is not followed", "port", d.port, "error", err)
		}
		d.setLinkLocked(p.LinkUp())
	}
	return d, nil
}

func (d *Device) stopWorkers() {
	if d.control != nil {
		d.control.stop()
	}
	for _, w := range d.pairs {
		w.stop()
	}
}

// Close ends the workers and closes the port. The session must have ended.
func (d *Device) Close() error {
	for i := range d.rings {
		_, _ = d.StopRing(i)
		_ = d.SetRingCall(i, -1)
		_ = d.SetRingErr(i, -1)
	}
	d.stopWorkers()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mem.Release()
	d.mem = guestmem.Empty()
	return d.port.Close()
}

// Name returns the device's name.
func (d *Device) Name() string { return d.cfg.Name }

// Counters are for the sessions to count in; Snapshot shows them.
func (d *Device) Counters() *vhostuser.Counters { return &d.sessions }

// Available returns the features that Config.With can add to the offer.
func (d *Device) Available() virtio.Features { return onRequest &^ d.offered }

// Features implements [vhostuser.Backend].
func (d *Device) Features() virtio.Features { return d.offered }

// ProtocolFeatures implements [vhostuser.Backend].
func (d *Device) ProtocolFeatures() vhostuser.ProtocolFeatures {
	return vhostuser.ProtocolMQ | vhostuser.ProtocolRARP | vhostuser.ProtocolReplyAck |
		vhostuser.ProtocolMTU | vhostuser.ProtocolBackendReq | vhostuser.ProtocolConfig |
		vhostuser.ProtocolLogSHMFD | vhostuser.ProtocolResetDevice | vhostuser.ProtocolConfigureMemSlots |
		vhostuser.ProtocolStatus
}

// NumRings implements [vhostuser.Backend]: two rings a pair and the control ring.
func (d *Device) NumRings() int { return len(d.rings) }

// QueueNum implements [vhostuser.Backend]. Front-ends disagree whether
// GET_QUEUE_NUM counts pairs or rings; the number of rings serves both, since
// each ring index is validated anyway.
func (d *Device) QueueNum() uint64 { return uint64(len(d.rings)) }

// controlIndex is where the driver has its control queue: behind all pairs that
// the device has if it knows of them, else behind the first pair (virtio 1.4,
// "Network Device / Virtqueues").
func (d *Device) controlIndex() int {
	if !d.features.Has(virtio.FeatureCtrlVQ) {
		return -1
	}
	if d.features&(virtio.FeatureMQ|virtio.FeatureRSS) != 0 {
		return 2 * d.cfg.QueuePairs
	}
	return 2
}

// SetFeatures implements [vhostuser.Backend].
func (d *Device) SetFeatures(f virtio.Features) error {
	// A front-end that keeps the control queue to itself, as QEMU and DPDK do, leaves
	// these of its driver's in when it takes the queue out.
	const ofControl = virtio.FeatureMQ | virtio.FeatureGuestAnnounce | virtio.FeatureRSS | virtio.FeatureHashReport |
		virtio.FeatureCtrlRX | virtio.FeatureCtrlRXExtra | virtio.FeatureCtrlVLAN | virtio.FeatureCtrlMACAddr |
		virtio.FeatureCtrlGuestOffloads | virtio.FeatureNotfCoal | virtio.FeatureVQNotfCoal | virtio.FeatureDeviceStats
	alone := f
	if !f.Has(virtio.FeatureCtrlVQ) {
		alone &^= ofControl
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// Not every front-end asks for an answer, so that a set that is refused is
	// remembered: no ring starts, and FEATURES_OK does not stick.
	d.refused = virtio.CheckDependencies(alone)
	if d.refused != nil {
		return fmt.Errorf("netdev: the driver's features: %w", d.refused)
	}
	f &^= virtio.FeatureProtocolFeatures
	if f == d.features {
		return nil
	}
	if d.running > 0 {
		return fmt.Errorf("netdev: features cannot change while %d rings are started", d.running)
	}
	d.features = f
	d.resetGuestLocked()
	return nil
}

// Connected implements [vhostuser.Backend].
func (d *Device) Connected() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.online = true
	d.connects++
	d.features, d.refused, d.proto, d.status = 0, nil, 0, 0
	d.resetGuestLocked()
}

// SetBackendChannel implements [vhostuser.Backend].
func (d *Device) SetBackendChannel(ch *vhostuser.BackendChannel) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.channel = ch
}

// Disconnected implements [vhostuser.Backend].
func (d *Device) Disconnected() {
	for i := range d.rings {
		_, _ = d.StopRing(i)
		_ = d.SetRingCall(i, -1)
		_ = d.SetRingErr(i, -1)
	}
	_ = d.SetMemory(guestmem.Empty())
	d.mu.Lock()
	defer d.mu.Unlock()
	d.channel, d.online = nil, false
	d.features, d.refused, d.proto, d.status = 0, nil, 0, 0
	for i := range d.rings {
		d.rings[i] = ringState{call: -1, err: -1}
	}
	d.resetGuestLocked()
	if p, ok := d.port.(port.Configurer); ok {
		// SEND_RARP needs no ring: what came of it is not for the next guest.
		if err := p.Reset(); err != nil {
			d.log.Warn("port after a session", "port", d.port, "error", err)
		}
	}
}

// SetMemory implements [vhostuser.Backend].
func (d *Device) SetMemory(m *guestmem.Map) error {
	d.mu.Lock()
	old := d.mem
	d.mem = m.Retain()
	for _, w := range d.pairs {
		_ = w.post(func() { w.rebind(m) })
	}
	d.mu.Unlock()
	_ = d.control.post(func() { d.control.rebind(m) })
	old.Release()
	return nil
}

// GetConfig implements [vhostuser.Backend]. Bytes behind the last field that
// the device has read as zero.
func (d *Device) GetConfig(off, n uint32) ([]byte, error) {
	const space = 256
	if n > space || off > space-n {
		return nil, fmt.Errorf("netdev: configuration space: no %d bytes at offset %d", n, off)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var b [space]byte
	c := d.config
	if d.channel == nil {
		// It would not learn that the link has come up.
		c.Status |= virtio.NetStatusLinkUp
	}
	c.Encode(b[:virtio.NetConfigSize])
	return b[off : off+n], nil
}

// SetConfig implements [vhostuser.Backend]. Only the MAC address of a driver
// without CTRL_MAC_ADDR is writable (virtio 1.4, "Device configuration layout").
func (d *Device) SetConfig(off, flags uint32, data []byte) error {
	if uint64(off)+uint64(len(data)) > 6 {
		return fmt.Errorf("netdev: configuration space is read-only at offset %d", off)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(d.config.MAC[off:], data)
	d.guest.mac = d.config.MAC
	return nil
}

// SetStatus implements [vhostuser.Backend]. Zero is a device reset.
func (d *Device) SetStatus(s uint8) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s == 0 && d.status != 0 {
		d.resetGuestLocked()
	}
	d.status = s
	return nil
}

// Status implements [vhostuser.Backend].
func (d *Device) Status() uint8 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refused != nil {
		return d.status &^ virtio.StatusFeaturesOK
	}
	return d.status
}

// SetMTU implements [vhostuser.Backend].
func (d *Device) SetMTU(mtu uint64) error {
	if mtu < 68 || mtu > 65535 {
		return fmt.Errorf("netdev: MTU %d: want 68 to 65535 bytes", mtu)
	}
	if err := d.setPortMTU(int(mtu)); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.config.MTU = uint16(mtu)
	return nil
}

func (d *Device) setPortMTU(mtu int) error {
	if p, ok := d.port.(port.MTUSetter); ok {
		return p.SetMTU(mtu)
	}
	return nil
}

// ResetDevice implements [vhostuser.Backend].
func (d *Device) ResetDevice() error {
	var errs []error
	for i := range d.rings {
		_, err := d.StopRing(i)
		errs = append(errs, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.rings {
		d.rings[i].enabled = false
	}
	d.status = 0
	d.resetGuestLocked()
	return errors.Join(errs...)
}

// SendRARP implements [vhostuser.Backend]: after a migration the driver is
// asked to announce itself if it can, else a RARP frame goes out for it.
func (d *Device) SendRARP(mac [6]byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := d.controlIndex()
	if d.features.Has(virtio.FeatureGuestAnnounce) && at >= 0 && d.rings[at].started {
		d.config.Status |= virtio.NetStatusAnnounce
		return d.configChanged()
	}
	w := d.pairs[0]
	return w.post(func() { _ = w.pq.Send([][]byte{rarp(w.hdrLen, mac)}) })
}

// rarp is a reverse ARP request in a minimal frame behind an empty virtio-net
// header: it makes switches learn where mac is now (RFC 903).
func rarp(hdrLen int, mac [6]byte) []byte {
	b := make([]byte, hdrLen+60)
	f := b[hdrLen:]
	for i := range 6 {
		f[i] = 0xff
	}
	copy(f[6:], mac[:])
	copy(f[12:], []byte{0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3})
	copy(f[22:], mac[:])
	copy(f[32:], mac[:])
	return b
}

// linkChanged follows the port's link.
func (d *Device) linkChanged() {
	up := d.port.(port.LinkState).LinkUp()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setLinkLocked(up)
}

func (d *Device) setLinkLocked(up bool) {
	old := d.config.Status
	d.config.Status &^= virtio.NetStatusLinkUp
	if up {
		d.config.Status |= virtio.NetStatusLinkUp
	}
	if d.config.Status == old {
		return
	}
	d.log.Info("link", "port", d.port, "up", up)
	if err := d.configChanged(); err != nil {
		d.log.Warn("front-end was not told of the link", "error", err)
	}
}

func (d *Device) configChanged() error {
	if d.channel == nil {
		return nil
	}
	return d.channel.ConfigChanged()
}

// RandomMAC returns a locally administered unicast address.
func RandomMAC() (mac [6]byte) {
	_, _ = rand.Read(mac[:])
	mac[0] = mac[0]&^1 | 2
	return mac
}
