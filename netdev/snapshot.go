package netdev

import (
	"strings"

	"github.com/vhostnet/vhostnet/coalesce"
)

// What a device does, in a snapshot.
const (
	// StateServing: front-ends are served.
	StateServing = "serving"
	// StateEnded: the connection that the device was made for has ended.
	StateEnded = "ended"
	// StateFailed: it could not be opened or served, or its port has failed.
	StateFailed = "failed"
)

// FailedSnapshot is the snapshot of a device that could not be opened.
func FailedSnapshot(name, port string) DeviceSnapshot {
	none := []string{}
	kind, _, _ := strings.Cut(port, ":")
	return DeviceSnapshot{
		Name: name, Port: port, PortKind: kind, State: StateFailed,
		FrontEnd:        FrontEndSnapshot{Requests: map[string]uint64{}, ProtocolErrors: map[string]uint64{}},
		OfferedFeatures: none, NegotiatedFeatures: none, ProtocolFeatures: none, GuestOffloads: none,
		Control: ControlSnapshot{Commands: map[string]uint64{}},
		Filter:  FilterSnapshot{Unicast: none, Multicast: none, VLANs: []uint16{}},
		Queues:  []QueueSnapshot{}, Counters: map[string]uint64{},
	}
}

// DeviceSnapshot is what one device looks like at one moment. It is a copy.
// Counters of different queues may be a few packets apart; engines are asked for
// their decisions between two bursts.
type DeviceSnapshot struct {
	// Name is the device's name, unique in the process.
	Name string `json:"name"`
	// Port is the host side, as KIND:ARGS.
	Port     string `json:"port"`
	PortKind string `json:"port_kind"`
	// State is StateServing, StateEnded or StateFailed, Error why it failed. A
	// device whose port has failed goes on serving its front-end, without frames.
	State string `json:"state"`
	Error string `json:"error,omitempty"`
	// PortIO is how the port moves frames, for ports that have more than one way.
	PortIO string `json:"port_io,omitempty"`
	// PortCounters are the port's own, of ports that have any: for a switch, what
	// became of the frames that the device sent, the addresses behind it, and
	// receiver_full, frames for it that found no room.
	PortCounters map[string]uint64 `json:"port_counters,omitempty"`
	// FrontEnd tells whether a VMM is connected.
	FrontEnd FrontEndSnapshot `json:"front_end"`
	// OfferedFeatures, NegotiatedFeatures and ProtocolFeatures are names.
	OfferedFeatures    []string `json:"offered_features"`
	NegotiatedFeatures []string `json:"negotiated_features"`
	ProtocolFeatures   []string `json:"protocol_features"`
	// MAC is the address in the configuration space, empty without VIRTIO_NET_F_MAC.
	MAC string `json:"mac,omitempty"`
	// MTU is the advised MTU in bytes, 0 without VIRTIO_NET_F_MTU.
	MTU    uint16 `json:"mtu,omitempty"`
	Status uint8  `json:"device_status"`
	// LinkUp is the port's link, as the driver sees it.
	LinkUp bool `json:"link_up"`
	// Speed is what the driver is told, in Mbit/s, 0 without VIRTIO_NET_F_SPEED_DUPLEX.
	Speed uint32 `json:"speed,omitempty"`
	// QueuePairs is what the device has, ActiveQueuePairs what the driver uses.
	QueuePairs       int `json:"queue_pairs"`
	ActiveQueuePairs int `json:"active_queue_pairs"`
	// RingFormat is the kind of the virtqueues, "split" or "packed".
	RingFormat string `json:"ring_format"`
	// Steering says how received frames find their queue: "automatic" (by the flow's
	// last transmit queue, if the port can), "port" (by the driver's indirection
	// table, in the port) or "device" (the same, and frames that the port has put
	// elsewhere are handed over).
	Steering string `json:"steering"`
	// HashTypes are the hash types in use, as VIRTIO_NET_HASH_TYPE bits.
	HashTypes uint32 `json:"hash_types,omitempty"`
	// GuestOffloads are the names of the receive offloads in force.
	GuestOffloads []string          `json:"guest_offloads"`
	Control       ControlSnapshot   `json:"control"`
	Filter        FilterSnapshot    `json:"filter"`
	Queues        []QueueSnapshot   `json:"queues"`
	Counters      map[string]uint64 `json:"counters"`
}

// FrontEndSnapshot describes the connection to the front-end.
type FrontEndSnapshot struct {
	Connected bool `json:"connected"`
	// Connections counts the front-ends that were served.
	Connections uint64 `json:"connections"`
	// MemoryRegions and MemoryBytes describe the guest memory that is mapped.
	MemoryRegions int    `json:"memory_regions"`
	MemoryBytes   uint64 `json:"memory_bytes"`
	// Requests counts vhost-user requests by name. Refused could not be carried
	// out; Rejected are front-ends that came while another one was served;
	// SurplusFDs are descriptors that no request asked for.
	Requests   map[string]uint64 `json:"requests"`
	Refused    uint64            `json:"refused"`
	Rejected   uint64            `json:"rejected"`
	SurplusFDs uint64            `json:"surplus_fds"`
	// ProtocolErrors counts, by kind, what ended a connection.
	ProtocolErrors map[string]uint64 `json:"protocol_errors"`
}

// ControlSnapshot counts control commands.
type ControlSnapshot struct {
	OK  uint64 `json:"ok"`
	Err uint64 `json:"err"`
	// LastError says why the last command that was refused was.
	LastError string `json:"last_error,omitempty"`
	// Commands counts the accepted ones by name, "NOTF_COAL/VQ_SET" for example.
	Commands map[string]uint64 `json:"commands"`
}

// FilterSnapshot is the receive filter as the driver set it.
type FilterSnapshot struct {
	// Configured is false until the driver has set any receive mode or table;
	// until then every frame passes.
	Configured  bool     `json:"configured"`
	Promiscuous bool     `json:"promiscuous"`
	AllMulti    bool     `json:"all_multicast"`
	Unicast     []string `json:"unicast"`
	Multicast   []string `json:"multicast"`
	VLANs       []uint16 `json:"vlans"`
}

// QueueSnapshot is one virtqueue.
type QueueSnapshot struct {
	// Index is the virtqueue index; rx queues are even, tx queues odd, the
	// control queue is the last one.
	Index int `json:"index"`
	// Kind is "rx" (device to guest), "tx" or "control".
	Kind    string `json:"kind"`
	Pair    int    `json:"pair"`
	Size    int    `json:"size"`
	Started bool   `json:"started"`
	Enabled bool   `json:"enabled"`
	// Broken is why the queue was taken out of service, "" when it works.
	Broken string `json:"broken,omitempty"`

	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
	// Kicks counts the times the worker was woken by the driver's notification.
	Kicks uint64 `json:"kicks"`
	// Calls counts notifications sent to the driver, CallsSuppressed the
	// decisions at which the driver had asked for none, CallErrors writes that
	// failed.
	Calls           uint64 `json:"calls"`
	CallsSuppressed uint64 `json:"calls_suppressed"`
	CallErrors      uint64 `json:"call_errors"`
	// HandedOver counts received frames that another queue of the port had.
	HandedOver uint64 `json:"handed_over,omitempty"`
	// Drops counts lost frames by reason.
	Drops map[string]uint64 `json:"drops"`
	// CallReasons counts decisions to notify by the moderator's reason.
	CallReasons map[string]uint64 `json:"call_reasons"`

	Coalesce CoalesceSnapshot `json:"coalesce"`
}

// CoalesceSnapshot shows who wants which notification limits for a queue.
type CoalesceSnapshot struct {
	// Guest is what the driver set (VQ_GET reports it).
	Guest LimitsSnapshot `json:"guest"`
	// Engine is the host's policy, Host what it asks for at present.
	Engine string         `json:"engine"`
	Host   LimitsSnapshot `json:"host"`
	// Effective is what the worker applies.
	Effective LimitsSnapshot `json:"effective"`
	// Decision is the engine's last one, and why.
	Decision coalesce.Decision `json:"decision"`
}

// LimitsSnapshot is a pair of notification limits.
type LimitsSnapshot struct {
	Usecs   uint32 `json:"usecs"`
	Packets uint32 `json:"packets"`
}
