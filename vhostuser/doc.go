// Package vhostuser speaks the vhost-user protocol, both halves of it.
//
// The back-end half is [Serve], which carries out the requests of one front-end
// on a [Backend], and [Run], which accepts or dials front-ends. The front-end
// half is [Frontend].
//
// The protocol is the one of QEMU's "Vhost-user Protocol" document: messages of
// a 12-byte header and a payload in the machine's byte order over a stream
// socket, with file descriptors in their ancillary data.
//
// The front-end is not trusted. The size of a message is bounded before anything
// is read; descriptors that a request does not take are closed; numbers are
// checked in full. A request that cannot be carried out is refused and the
// connection goes on; one that cannot be understood ends it.
package vhostuser
