package driver

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

// wantProtocol is what the driver uses of the vhost-user protocol.
const wantProtocol = vhostuser.ProtocolMQ | vhostuser.ProtocolReplyAck | vhostuser.ProtocolConfig |
	vhostuser.ProtocolStatus | vhostuser.ProtocolMTU | vhostuser.ProtocolRARP | vhostuser.ProtocolBackendReq |
	vhostuser.ProtocolConfigureMemSlots | vhostuser.ProtocolResetDevice

// negotiate agrees on features and reads the configuration space.
func (d *Driver) negotiate() error {
	step := func(what string, err error) error {
		if err != nil {
			return fmt.Errorf("driver: %s: %w", what, err)
		}
		return nil
	}
	if err := step("set owner", d.fe.SetOwner()); err != nil {
		return err
	}
	offer, err := d.fe.GetFeatures()
	if err != nil {
		return step("get features", err)
	}
	d.offer = offer
	queues := uint64(2)
	if offer.Has(virtio.FeatureProtocolFeatures) {
		pf, err := d.fe.GetProtocolFeatures()
		if err != nil {
			return step("get protocol features", err)
		}
		d.protocol = pf & wantProtocol
		if d.cfg.DirtyLog {
			d.protocol |= pf & vhostuser.ProtocolLogSHMFD
		}
		if err := step("set protocol features", d.fe.SetProtocolFeatures(d.protocol)); err != nil {
			return err
		}
		if d.protocol&vhostuser.ProtocolMQ != 0 {
			if queues, err = d.fe.GetQueueNum(); err != nil {
				return step("get queue number", err)
			}
		}
	}
	d.features = (offer & d.cfg.Features).Closure()
	if err := d.readConfig(); err != nil {
		return err
	}
	if err := d.checkOffer(queues); err != nil {
		return err
	}
	if err := d.status(virtio.StatusAcknowledge | virtio.StatusDriver); err != nil {
		return err
	}
	if err := step("set features", d.fe.SetFeatures(d.features|offer&virtio.FeatureProtocolFeatures)); err != nil {
		return err
	}
	return d.status(virtio.StatusAcknowledge | virtio.StatusDriver | virtio.StatusFeaturesOK)
}

// checkOffer refuses configurations that the device cannot serve.
func (d *Driver) checkOffer(queues uint64) error {
	n := d.cfg.QueuePairs
	if d.cfg.Packed && !d.features.Has(virtio.FeatureRingPacked) {
		return fmt.Errorf("%w: packed virtqueues, but the device has no VIRTIO_F_RING_PACKED", ErrConfig)
	}
	if n == 1 {
		// A driver of one pair has no use for MQ, and without it the control queue
		// follows that pair.
		if !d.features.Has(virtio.FeatureRSS) {
			d.features &^= virtio.FeatureMQ
		}
		return nil
	}
	switch {
	case d.features&(virtio.FeatureMQ|virtio.FeatureRSS) == 0:
		return fmt.Errorf("%w: %d queue pairs, but the device has no VIRTIO_NET_F_MQ", ErrConfig, n)
	case n > d.config.maxPairs:
		return fmt.Errorf("%w: %d queue pairs, but the device has %d", ErrConfig, n, d.config.maxPairs)
	case uint64(n) > queues:
		return fmt.Errorf("%w: %d queue pairs, but the back-end has %d queues", ErrConfig, n, queues)
	}
	return nil
}

// readConfig reads the configuration space if the back-end has one.
func (d *Driver) readConfig() error {
	d.config.maxPairs = 1
	if d.protocol&vhostuser.ProtocolConfig == 0 {
		d.features &^= virtio.FeatureMAC | virtio.FeatureMTU | virtio.FeatureStatus | virtio.FeatureMQ |
			virtio.FeatureRSS | virtio.FeatureHashReport | virtio.FeatureSpeedDuplex
		return nil
	}
	const rss = virtio.FeatureRSS | virtio.FeatureHashReport
	size := uint32(12) // up to and including mtu
	if d.features&(rss|virtio.FeatureSpeedDuplex) != 0 {
		size = 24 // and supported_hash_types
	}
	b, err := d.fe.GetConfig(0, size)
	if err != nil {
		return fmt.Errorf("driver: get config: %w", err)
	}
	if len(b) != int(size) {
		return fmt.Errorf("%w: configuration of %d bytes, asked for %d", ErrDevice, len(b), size)
	}
	if d.features.Has(virtio.FeatureMAC) {
		copy(d.config.mac[:], b)
	}
	if d.features.Has(virtio.FeatureStatus) {
		d.config.status = binary.LittleEndian.Uint16(b[6:])
	}
	if d.features.Has(virtio.FeatureSpeedDuplex) {
		d.config.speed, d.config.duplex = binary.LittleEndian.Uint32(b[12:]), b[16]
	}
	if d.features&rss != 0 {
		d.config.rssKey, d.config.rssTable = int(b[17]), int(binary.LittleEndian.Uint16(b[18:]))
		d.config.hashes = binary.LittleEndian.Uint32(b[20:])
	}
	if d.features&(virtio.FeatureMQ|virtio.FeatureRSS) != 0 {
		d.config.maxPairs = int(binary.LittleEndian.Uint16(b[8:]))
	}
	if d.features.Has(virtio.FeatureMTU) {
		d.config.mtu = binary.LittleEndian.Uint16(b[10:])
	}
	return nil
}

func (d *Driver) status(s uint8) error {
	if d.protocol&vhostuser.ProtocolStatus == 0 {
		return nil
	}
	if err := d.fe.SetStatus(s); err != nil {
		return fmt.Errorf("driver: set status %#x: %w", s, err)
	}
	return nil
}

// startRings shares the memory and starts and enables every ring.
func (d *Driver) startRings() error {
	if err := d.fe.SetMemTable(d.mem.regions(d.cfg.MemRegions)); err != nil {
		return fmt.Errorf("driver: set memory table: %w", err)
	}
	for _, q := range d.rings {
		if err := d.startRing(q); err != nil {
			return fmt.Errorf("driver: start virtqueue %d: %w", q.index, err)
		}
	}
	// A request with a reply makes sure that everything before it was carried
	// out. Setting a call eventfd makes a back-end write to it once; that is not
	// a notification.
	if _, err := d.fe.GetFeatures(); err != nil {
		return fmt.Errorf("driver: get features: %w", err)
	}
	for _, q := range d.rings {
		q.drain()
	}
	err := d.status(virtio.StatusAcknowledge | virtio.StatusDriver | virtio.StatusFeaturesOK | virtio.StatusDriverOK)
	if err != nil {
		return err
	}
	for _, q := range d.rings {
		q.publish() // the receive buffers
	}
	return nil
}

func (d *Driver) startRing(q *queue) error {
	if err := d.fe.SetVringNum(q.index, q.size); err != nil {
		return err
	}
	base := uint32(0)
	if q.packed != nil {
		base = firstBase
	}
	if err := d.fe.SetVringBase(q.index, base); err != nil {
		return err
	}
	if err := d.setAddr(q); err != nil {
		return err
	}
	if err := d.fe.SetVringCall(q.index, q.call); err != nil {
		return err
	}
	d.started++
	if err := d.fe.SetVringKick(q.index, q.kick); err != nil {
		return err
	}
	if d.offer.Has(virtio.FeatureProtocolFeatures) {
		return d.fe.SetVringEnable(q.index, true)
	}
	return nil
}

// stopRings stops what was started. A data queue's base must lie between what the device
// has given back and what it was given.
func (d *Driver) stopRings() error {
	var errs []error
	for _, q := range d.rings[:d.started] {
		base, err := d.fe.GetVringBase(q.index)
		if err != nil {
			// The connection is gone or no longer in step: nothing more to be had.
			return errors.Join(append(errs, fmt.Errorf("driver: stop virtqueue %d: %w", q.index, err))...)
		}
		errs = append(errs, q.stoppedAt(base))
	}
	d.started = 0
	return errors.Join(errs...)
}
