package sim

// Times are in nanoseconds of virtual time.
const (
	microsecond = int64(1000)
	millisecond = 1000 * microsecond
	second      = 1000 * millisecond
)

// Params are what things cost. [DefaultParams] are as measured between two
// threads of a virtual machine with two cores; all times are nanoseconds.
type Params struct {
	// Wake is from a notification until a driver that sleeps runs; Interrupt is
	// the processor time that each notification costs it on top.
	Wake, Interrupt int64
	// Service is what the driver and the stack above it need for a received
	// packet, Reclaim for the buffer of a sent one, Send for sending one.
	Service, Reclaim, Send int64
	// Poll is the price of each pass of the driver over the ring, and of asking
	// for notifications again; Budget is how many packets it takes in a pass.
	Poll   int64
	Budget int

	// DeviceWake is from an arrival, or a kick, until a worker that sleeps runs;
	// Late is by how much a timer wakes it too late. A deadline nearer than Spin
	// is waited for awake.
	DeviceWake, Late, Spin int64
	// Receive and Transmit are what the worker needs for a packet, PerBurst for
	// each burst, which has at most Burst packets.
	Receive, Transmit, PerBurst int64
	Burst                       int
	// Call is what a notification costs the worker, CallAsleep if the driver
	// sleeps: then the kernel has to wake another core.
	Call, CallAsleep int64

	// Ring is the size of the virtqueue, PortQueue how many packets wait in front
	// of the device before further ones are lost.
	Ring, PortQueue int
}

// DefaultParams returns the costs that tables are made with.
func DefaultParams() Params {
	return Params{
		Wake: 20 * microsecond, Interrupt: 5 * microsecond,
		Service: 1500, Reclaim: 150, Send: 1000,
		Poll: 300, Budget: 64,
		DeviceWake: 5 * microsecond, Late: 5 * microsecond, Spin: 15 * microsecond,
		Receive: 1000, Transmit: 1600, PerBurst: 500, Burst: 64,
		Call: 400, CallAsleep: 15 * microsecond,
		Ring: 256, PortQueue: 1000,
	}
}
