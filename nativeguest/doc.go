// Package nativeguest is a guest without a machine around it: the embedded
// driver with a TAP behind its virtqueues. The network stack of the TAP's
// namespace is the guest's, so that real programs use a device at the speed of
// the host's processor.
//
// It serves its queue pair as the Linux driver does: one thread is the guest's
// only processor, sleeps until the device notifies or the stack transmits, polls
// the receive queue with a budget, and asks for notifications again when there is
// nothing left (NAPI). What it looks at without being told is what that driver
// looks at: the receive queue only after a notification, and the transmit queue
// when it transmits. A notification that the device leaves out therefore is one
// that the guest is without, and not one that it did not need.
//
// Two things are cheaper than in a virtual machine: there is no exit, and no
// interrupt to be injected. [Config.InterruptCost] puts a price on the latter. And
// the stack of the namespace has got rid of a frame when it is read from the TAP,
// so transmission is never slowed down by buffers that come back late (BQL, socket
// accounting).
package nativeguest
