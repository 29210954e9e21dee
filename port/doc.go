// Package port is the border between the network device and the host side that
// it is plugged into: the interfaces that a port implements, the errors that
// tell their outcomes apart, and the KIND:ARGS notation that names ports.
//
// A frame crosses the border with its virtio-net header in front (virtio 1.4,
// "Network Device / Device Operation"), in as many pieces as its owner has it.
package port
