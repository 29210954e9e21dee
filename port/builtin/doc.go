// Package builtin has the ports without a network behind them, for tests and
// benchmarks of the device itself:
//
//   - "null" takes every frame and never has one.
//   - "source" takes every frame too, and has an endless supply of numbered
//     frames of one size ("source:1514"; 60 bytes by default).
//   - "echo" hands every frame back with its MAC addresses exchanged, in order,
//     and holds the sender up rather than losing one.
//
// Nothing in them allocates, locks or makes a system call per frame. They have
// no descriptor to poll: FD is -1.
//
// A frame is preceded by the virtio-net header (virtio 1.4, "Network Device",
// "Device Operation"), whose size [port.Configurer] sets. The source leaves it
// zero; echo returns it as it came, so that a partial checksum or a segmented
// frame goes back as such, if the driver accepts that.
package builtin
