// Package mgmt is the read-only status API of vhostnet: HTTP with JSON bodies
// over a Unix socket or over AF_VSOCK, and a client for it.
//
//	GET /v1/devices         {"devices":[netdev.DeviceSnapshot, ...]}
//	GET /v1/devices/{name}  one netdev.DeviceSnapshot
//	GET /v1/version         VersionInfo
//
// Errors are JSON too: {"error":"...","status":404}. An unknown path or device
// answers 404, any method but GET and HEAD answers 405.
//
// Nothing that a request contains changes a device, and taking a snapshot never
// stops one. The package knows of devices only what a snapshot says: it takes a
// function that returns them, so it can neither reach a queue nor a file
// descriptor.
//
// A peer is not trusted. Over AF_VSOCK it may be a guest; requests are bounded
// in size and time, and connections in number, for each listener apart. Access
// to a Unix socket is governed by its directory and by the umask under which it
// is made; AF_VSOCK has no such thing.
package mgmt
