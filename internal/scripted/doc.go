// Package scripted is a vhost-user front-end that does what a script says, for
// tests against a vhostnet process. It knows the protocol and the split ring
// ("Split Virtqueues", virtio 1.4), but decides nothing: every field of a ring
// and every byte of a message can be made wrong.
//
// A test builds the program once with [Build], starts it with [Serve], connects
// with [Child.Dial], and speaks through the [Guest]. These do what the fault
// cases call by the same names:
//
//	HELLO  Guest.Hello       features, owner, memory table of one region
//	START  Guest.Start       size, base, addresses, kick, call, enable
//	TXPKT  Guest.Transmit    a frame behind a header of zeros, until it is used
//	RXPKT  Guest.Receive     the next frame that was put into a posted buffer
//	ALIVE  Child.Alive       no crash, a fresh connection works, nothing leaks
//
// Memory is one region R0 of 16 MiB, guest address 0. Ring q has its descriptor
// table at 0x10000 + q*0x10000, the available ring 0x4000 and the used ring
// 0x8000 behind it, for up to 1024 entries. Buffers begin at 0x200000, 2 KiB
// each, 256 for each ring; see [Memory.Buffer].
//
// Functions that take a testing.TB, and methods of what they return, end the
// test when something fails that is not the point of it; they belong to the
// test's goroutine. Methods of [Ring] and [Host] return errors and may be used
// from others, each ring from one at a time.
package scripted
