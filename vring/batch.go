package vring

// Fault says what is wrong with a chain. The zero value is nothing.
type Fault uint8

const (
	FaultNone     Fault = iota
	FaultNext           // a link points outside of the table
	FaultLength         // more links than the ring or the table may have
	FaultAddress        // a buffer is not in guest memory
	FaultOrder          // a readable buffer behind a writable one
	FaultIndirect       // a bad indirect descriptor or table
	FaultSegments       // more segments than a batch holds
)

var faultNames = [...]string{"none", "next", "length", "address", "order", "indirect", "segments"}

// String returns the fault's name as counters spell it.
func (f Fault) String() string {
	if int(f) < len(faultNames) {
		return faultNames[f]
	}
	return "invalid"
}

// Chain is one descriptor chain.
type Chain struct {
	// ID is what the driver calls it: the index of its first descriptor.
	ID uint16
	// Count is how many descriptors of the ring it takes, at least 1; those in an
	// indirect table take none. Of a faulty chain it is how many were followed.
	Count uint16
	// Fault is not FaultNone if the chain breaks the rules; it has no segments
	// then, and is to be completed with 0.
	Fault Fault
	// ReadLen and WriteLen are the bytes in its readable and writable segments:
	// sums of 32-bit lengths, which may be more than 32 bits.
	ReadLen, WriteLen uint64

	start, mid, end uint32 // segments in the batch
}

// Batch is the caller's memory for chains and their segments. Its content is
// valid until Reset, and as long as the queue keeps its memory map.
type Batch struct {
	Chains []Chain
	segs   [][]byte
}

// NewBatch returns a batch for up to chains chains with up to segs segments in
// all. A buffer counts once for each memory region that it lies in. A chain that
// has more segments than an empty batch holds is faulty.
func NewBatch(chains, segs int) *Batch {
	return &Batch{Chains: make([]Chain, 0, chains), segs: make([][]byte, 0, segs)}
}

// Reset forgets all chains.
func (b *Batch) Reset() {
	b.Chains = b.Chains[:0]
	clear(b.segs) // they may outlive the memory that they point to
	b.segs = b.segs[:0]
}

// Readable returns the segments of chain i that the driver has filled.
func (b *Batch) Readable(i int) [][]byte {
	c := &b.Chains[i]
	return b.segs[c.start:c.mid:c.mid]
}

// Writable returns the segments of chain i that the device may fill.
func (b *Batch) Writable(i int) [][]byte {
	c := &b.Chains[i]
	return b.segs[c.mid:c.end:c.end]
}
