// Package pcap is the port behind capture files: it records what the guest sends, and
// replays a capture into the guest.
//
// The format is the classic one (draft-ietf-opsawg-pcap): files are written with
// nanoseconds and in little-endian order, and read in both orders and resolutions.
// Files of the newer one, pcapng (draft-ietf-opsawg-pcapng), are read too. Frames are
// Ethernet. The port offers no offloads, so that what is recorded is what would be on
// a wire.
package pcap
