// Package afpacket is the port behind an Ethernet interface of the host, a NIC or one
// end of a veth pair: packet sockets (AF_PACKET, packet(7)) that take all frames that
// the interface receives, and send through it what the guest sends.
//
// The interface is the guest's alone as far as frames from outside are concerned: the
// host's own stack sees them too and should have no address there. What the host
// itself sends through it does not reach the guest, and neither do the guest's own
// frames.
//
// Frames carry a virtio-net header (PACKET_VNET_HDR), so that checksums and
// segmentation are left undone where both sides agree on it (virtio 1.4, "Network
// Device", "Device Operation"). A packet socket hands frames over as they are,
// whatever the driver has accepted: package offload does then what the driver
// would not.
//
// Several queues are several sockets in a fanout group. Which one gets a frame is
// up to a program of the port's own that hashes the flow, the same way in both
// directions, over the queues that are in use.
package afpacket
