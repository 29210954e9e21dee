// Package vswitch is learning Ethernet switches in memory, and their ports: guests
// of one process reach each other without a system call for a frame.
//
// A switch is known by its name. It begins with its first port and ends with its
// last one. Ports belong to devices, their queues to workers, which are threads of
// their own; the switch has none.
//
// # The way of a frame
//
// The sender's worker finds out where a frame goes, reserves room in that queue's
// inbox, a bounded ring, with one compare-and-swap for a run of frames to the same
// queue, and copies them there. The receiver's worker copies them into the buffers
// of its driver. So there are two copies, not one. For one, a worker would have to
// write to, or read from, the memory of another worker's guest: when that stops,
// moves its memory table or shrinks its memory file, the two would have to agree
// about it with each burst, a fault would hit the wrong ring, and a receiver that
// does not drain would keep the sender's descriptors. The inbox is warm in the
// cache that both share, and nobody waits for anybody: what finds an inbox full is
// dropped and counted, as in any switch.
//
// Whoever stops receiving lets go of its inbox. A sender that is writing into it at
// that moment does no harm: the memory lives as long as someone has it.
//
// A receiver sleeps on an eventfd. Before it does, it says so in its inbox and
// looks once more; only then do senders ring.
//
// # Switching
//
// VLAN tags are not looked at. Unknown, broadcast and multicast addresses are
// flooded to all other ports on which somebody receives; the sixteen addresses that
// bridges keep to themselves (IEEE 802.1Q, 8.6.3) are not passed on, and frames
// from a group address or none are dropped. Addresses are learned for 300 s since
// they were last seen. A port has 1024 of them at most, and takes nobody else's
// place in a table that is full, so that a guest which makes up addresses does not
// turn the switch into a hub for others. A guest that uses another one's address
// does get its frames, as on any learning switch.
//
// Of a port with several queues, one is chosen by a hash of addresses and ports, so
// that a flow stays in order.
//
// # Offloads
//
// Checksums and TCP segmentation are on offer in both directions. A frame that the
// receiver's driver can take as it is passes as it is; for another one the checksum
// is completed, or the frame is segmented, on the way. UFO and USO are not offered.
package vswitch
