// Command bench measures packets per second with the embedded driver against a
// device on the built-in ports, and writes a table as Markdown and JSON.
//
// Usage:
//
//	go run ./bench [--quick] [--out DIR] [--device child|inproc] [--repeats N]
//
// Sink is driver to device, source is device to driver, and echo sends a window
// of frames round and round. A driver either polls, or blocks on the call
// eventfds, so that the device has to notify it.
//
// The cases are run one after the other, and that several times over, so that a
// slow phase of the machine falls on all of them. The table has the median and
// the range.
package main
