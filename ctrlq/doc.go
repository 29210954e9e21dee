// Package ctrlq decodes the commands of a network device's control virtqueue
// and holds the receive filter that they configure. It works on bytes: it sees
// no ring and no file descriptor.
//
// # What is refused
//
// A command is refused with VIRTIO_NET_ERR, and no method of the [Handler] is
// called, if it is unknown, if its feature was not negotiated, or if its data
// is shorter or longer than the command's. That goes for RX, VLAN and ANNOUNCE
// commands as well, which some drivers send without having negotiated them: what
// has no effect is not acknowledged. Leniency is in the values:
//
//   - Any value but 0 turns an RX mode on.
//   - NOTF_COAL/VQ_GET may leave out the two reserved bytes behind the index.
//   - A MAC table of any length that the request holds is accepted; what does
//     not fit into [MaxTable] entries is accepted by filtering less.
//   - GUEST_OFFLOADS may have the bit of GUEST_HDRLEN, if that was negotiated.
//   - RSS_CONFIG and HASH_CONFIG may have a byte behind the key, as Linux has.
//   - More room for the answer than it takes is left as it is.
//
// Section of the specification: virtio 1.4, "Network Device / Device Operation /
// Control Virtqueue".
package ctrlq
