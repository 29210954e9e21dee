// Package mgmt is the management API of vhostnet: HTTP with JSON bodies over a
// Unix socket or over AF_VSOCK, and a client for it.
//
//	GET /v1/devices         {"devices":[netdev.DeviceSnapshot, ...]}
//	GET /v1/devices/{name}  one netdev.DeviceSnapshot
//	GET /v1/version         VersionInfo
//	POST /v1/devices        adds a device; answers 201 and its netdev.DeviceSnapshot
//	DELETE /v1/devices/{name}  removes one; answers Removed when it is gone
//	PUT /v1/devices/{name}/queues/{index}/moderation  {"engine":"adaptive"}
//
// Errors are JSON too: {"error":"...","status":404}. An unknown path or device
// answers 404, a method that a path does not have answers 405, a device that there
// is already 409. A process whose devices are fixed has no POST and no DELETE.
//
// What changes something goes over a Unix socket only: over AF_VSOCK the API is
// read-only and answers 403. Taking a snapshot never stops a device. The package
// knows of devices only what a snapshot says: it takes functions that return
// snapshots, set an engine, add and remove devices, so it can neither reach a queue
// nor a file descriptor; what an object that describes a device may contain is for
// the function that it is given to.
//
// A peer is not trusted. Over AF_VSOCK it may be a guest; requests are bounded
// in size and time, and connections in number, for each listener apart. Access
// to a Unix socket is governed by its directory and by the umask under which it
// is made; AF_VSOCK has no such thing.
package mgmt
