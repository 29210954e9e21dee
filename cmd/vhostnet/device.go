package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/netdev"
)

// deviceFlags describe a device, on the command line, in a file and in the API:
// the keys are the flags' names everywhere.
type deviceFlags struct {
	Name           deviceName  `default:"net0" placeholder:"NAME" group:"device" help:"Name in the status API and in the log (default net0): 1 to 64 letters, digits, dots, hyphens, underscores." toml:"name" json:"name,omitzero"`
	Port           string      `placeholder:"KIND:ARGS" group:"device" help:"Host side: tap:NAME (attaches to a TAP that exists, and otherwise makes one that lives as long as the device), tap-fd:N,N,... (open descriptors of a TAP's queues, one for each queue pair, inherited from a supervisor, with IFF_NO_PI and IFF_VNET_HDR), af-packet:IFACE (packet sockets on an Ethernet interface that exists, a NIC or one end of a veth pair, which the host should give no address; needs CAP_NET_RAW), switch:NAME (a learning switch in the process, to which all devices with that NAME are connected), pcap:record=FILE,replay=FILE,loop (a capture file that is written with what the guest sends, and one whose frames it receives, as fast as it takes them, once or with loop without end; one of the two is enough), or built in and in need of no privilege: null (drops frames), source[:SIZE] (sends frames of SIZE bytes, 14 to 65535, without end), echo (sends each frame back). Default null." toml:"port" json:"port,omitzero"`
	TapIO          string      `name:"tap-io" default:"auto" enum:"auto,readv,io_uring" placeholder:"METHOD" group:"device" help:"How frames are moved from and to a TAP: readv (one system call a frame), io_uring (one for many frames; needs Linux 6.4, and that nobody has forbidden it), or auto (default): io_uring if it can be had." toml:"tap-io" json:"tap-io,omitzero"`
	QueuePairs     *int        `default:"1" placeholder:"N" group:"device" help:"Receive/transmit queue pairs, 1 (default) to 127; more than one needs a multi_queue TAP and a front-end with the same number or less." toml:"queue-pairs" json:"queue-pairs,omitzero"`
	QueueSize      int         `default:"0" placeholder:"N" group:"device" help:"Largest virtqueue to accept, a power of two from 2 to 32768 descriptors; 0 (default) is 32768. The front-end chooses the size." toml:"queue-size" json:"queue-size,omitzero"`
	MAC            mac         `name:"mac" placeholder:"ADDRESS" group:"device" help:"Ethernet address to offer to the driver, as 52:54:00:12:34:56; without it the driver chooses one." toml:"mac" json:"mac,omitzero"`
	MTU            int         `name:"mtu" placeholder:"BYTES" group:"device" help:"MTU to advise to the driver and to set on a TAP, 68 to 65535 bytes; without it none is advised." toml:"mtu" json:"mtu,omitzero"`
	Features       featureEdit `placeholder:"+NAME,-NAME" group:"device" help:"Features to take out of the offer (-NAME) or to insist on (+NAME: an error if the device cannot have it). Names as in \"vhostnet features\", with or without VIRTIO_NET_F_, in any case." toml:"features" json:"features,omitzero"`
	Speed          int         `name:"link-speed" placeholder:"MBITS" group:"device" help:"Link speed to tell the driver, 1 to 2147483647 Mbit/s, with full duplex; without it the driver is told none. It limits nothing." toml:"link-speed" json:"link-speed,omitzero"`
	RSSTable       int         `name:"rss-table" placeholder:"N" group:"device" help:"With --features +rss: the longest indirection table, a power of two from 128 (default) to 32768 entries. Older Linux drivers take no more than 128." toml:"rss-table" json:"rss-table,omitzero"`
	RSSKey         int         `name:"rss-key" placeholder:"BYTES" group:"device" help:"With --features +rss or +hash_report: the longest hash key, 40 (default) to 255 bytes. Older Linux drivers take no more than 40." toml:"rss-key" json:"rss-key,omitzero"`
	RXCoalesce     limits      `name:"rx-coalesce" placeholder:"USECS/FRAMES" group:"moderation" help:"Hold receive notifications back for up to USECS microseconds (0 to 1000000) or FRAMES frames (0 to 32768), whichever comes first; 0 microseconds, or less than 2 frames, notify after every frame. Default 0/0. What the guest sets is a ceiling." toml:"rx-coalesce" json:"rx-coalesce,omitzero"`
	TXCoalesce     limits      `name:"tx-coalesce" placeholder:"USECS/FRAMES" group:"moderation" help:"The same for transmit completions. Default 0/0." toml:"tx-coalesce" json:"tx-coalesce,omitzero"`
	RXModeration   engine      `name:"rx-moderation" placeholder:"ENGINE" group:"moderation" help:"Who chooses the limits of receive queues instead: off, fixed:USECS/FRAMES (the same as --rx-coalesce), net-dim[:eqe|cqe][:U,F_U,F_U,F_U,F_U,F] (hill climbing on throughput, as the Linux kernel does it for its drivers), rdma-dim (on frames per notification), adaptive[:max-latency=USECS] (from what the device sees of the driver). Default off, which leaves it to the guest." toml:"rx-moderation" json:"rx-moderation,omitzero"`
	TXModeration   engine      `name:"tx-moderation" placeholder:"ENGINE" group:"moderation" help:"The same for transmit completions." toml:"tx-moderation" json:"tx-moderation,omitzero"`
	CoalesceStrict bool        `group:"moderation" help:"Let a guest that sets \"notify after every frame\" overrule --rx-coalesce and --tx-coalesce. It is Linux's default, and \"ethtool -C rx-usecs\" sends it for the other direction, so it is not taken to the letter unless asked for." toml:"coalesce-strict" json:"coalesce-strict,omitzero"`
	Trace          string      `placeholder:"FILE" group:"moderation" help:"Write what engines observe and decide to FILE, one JSON object a line, for vhostnet sim --trace. It needs an engine that learns: net-dim, rdma-dim or adaptive; off and fixed observe nothing. A file that exists is replaced. What the disk is too slow for is left out and counted." toml:"trace" json:"trace,omitzero"`
}

// engines are those for receive and transmit queues.
func (f *deviceFlags) engines() (rx, tx coalesce.EngineSpec, err error) {
	if rx, err = moderationEngine("rx", f.RXModeration, f.RXCoalesce, coalesce.RX); err == nil {
		tx, err = moderationEngine("tx", f.TXModeration, f.TXCoalesce, coalesce.TX)
	}
	return rx, tx, err
}

// pairs is the number of queue pairs.
func (f *deviceFlags) pairs() int {
	if f.QueuePairs == nil {
		return 1
	}
	return *f.QueuePairs
}

// check finds what is wrong without opening anything.
func (f *deviceFlags) check() error {
	if n := f.pairs(); n < 1 || n > netdev.MaxQueuePairs {
		return usageError{fmt.Errorf("--queue-pairs %d: want 1 to %d", n, netdev.MaxQueuePairs)}
	}
	if n := f.QueueSize; n < 0 || n == 1 || n > netdev.MaxQueueSize || n&(n-1) != 0 {
		return usageError{fmt.Errorf("--queue-size %d: want a power of two from 2 to %d", n, netdev.MaxQueueSize)}
	}
	if n := f.MTU; n != 0 && (n < 68 || n > 65535) {
		return usageError{fmt.Errorf("--mtu %d: want 68 to 65535 bytes", n)}
	}
	if _, known := tapIO[f.TapIO]; !known {
		return usageError{fmt.Errorf("--tap-io %s: want auto, readv or io_uring", f.TapIO)}
	}
	if f.Port != "" {
		if err := checkPort(f.Port); err != nil {
			return err
		}
	}
	rx, tx, err := f.engines()
	if err != nil {
		return err
	}
	if f.Trace != "" && !learns(rx) && !learns(tx) {
		return usageError{fmt.Errorf("--trace needs an engine that observes something: --rx-moderation or --tx-moderation with net-dim, rdma-dim or adaptive")}
	}
	return nil
}

// open makes the device and its port; pool and t may be nil.
func (f *deviceFlags) open(log *slog.Logger, pool *netdev.Pool, t *traceFile) (*netdev.Device, error) {
	rx, tx, err := f.engines()
	if err != nil {
		return nil, err
	}
	spec := f.Port
	if spec == "" {
		log.Warn("no --port: frames are dropped; use --port tap:NAME for a network")
		spec = "null"
	}
	p, err := openPort(spec, f.pairs(), tapIO[f.TapIO])
	if err != nil {
		return nil, err
	}
	d, err := netdev.New(netdev.Config{
		Name:       string(f.Name),
		QueuePairs: f.pairs(),
		QueueSize:  f.QueueSize,
		MAC:        f.MAC,
		MTU:        f.MTU,
		Speed:      f.Speed,
		RSSTable:   f.RSSTable,
		RSSKey:     f.RSSKey,
		Strict:     f.CoalesceStrict,
		With:       f.Features.with,
		Without:    f.Features.without,
		Pool:       pool,
		Trace:      t.hook(),
		Log:        log,

		RXModeration: rx,
		TXModeration: tx,
	}, p)
	if errors.Is(err, netdev.ErrConfig) {
		err = usageError{err}
	}
	return d, err
}

// moderationEngine reads --rx-moderation, for which --rx-coalesce is short, or the same of tx.
func moderationEngine(dir string, spec engine, l limits, d coalesce.Direction) (coalesce.EngineSpec, error) {
	if spec == "" {
		if l == (limits{}) {
			return coalesce.EngineSpec{Direction: d}, nil
		}
		return coalesce.EngineSpec{Kind: coalesce.EngineFixed, Direction: d, Limits: coalesce.Limits(l)}, nil
	}
	if l != (limits{}) {
		return coalesce.EngineSpec{}, usageError{fmt.Errorf("--%s-coalesce is short for --%[1]s-moderation fixed: give one of them", dir)}
	}
	s, err := coalesce.ParseEngine(string(spec), d)
	if err != nil {
		return coalesce.EngineSpec{}, usageError{fmt.Errorf("--%s-moderation: %w", dir, err)}
	}
	return s, nil
}
