package vswitch

import (
	"github.com/vhostnet/vhostnet/port/offload"
	"github.com/vhostnet/vhostnet/virtio"
)

// job is a frame on its way to one port, or to several.
type job struct {
	h      virtio.NetHeader // checked by the device
	pieces [][]byte         // without the header
	size   int
	peek   []byte // its first bytes

	// whole is a copy of the frame once something had to be done to it, complete
	// tells that its checksum is.
	whole    []byte
	complete bool
}

// deliver gives a frame to a port in a form that its driver can take. It returns
// false if nobody receives there.
func (q *queue) deliver(p *Port, j *job) bool {
	in := p.pick(j.peek)
	if in == nil {
		return false
	}
	need := offload.Needs(&j.h)
	switch missing := need &^ virtio.Features(p.guest.Load()); {
	case need == 0:
		lost(p, in.putWhole(j.pieces, j.size, true))
	case missing == 0:
		j.h.Encode(q.header[:])
		q.framed = append(append(q.framed[:0], q.header[:]), j.pieces...)
		lost(p, in.putWhole(q.framed, storedHeader+j.size, false))
	case j.h.GSOType == virtio.GSONone:
		q.take(j)
		if !j.complete {
			offload.Complete(j.whole, int(j.h.CSumStart), int(j.h.CSumOffset))
			j.complete = true
		}
		q.count(countChecksums)
		q.one[0] = j.whole
		lost(p, in.put(q.one[:]) == 1)
	default:
		q.take(j)
		q.segments(p, in, j)
	}
	return true
}

func lost(p *Port, taken bool) {
	if !taken {
		p.full.Add(1)
	}
}

// take makes a copy of the frame that the driver cannot change.
func (q *queue) take(j *job) {
	if j.whole != nil {
		return
	}
	if q.whole == nil {
		q.whole, q.segment = make([]byte, maxFrame), make([]byte, maxFrame)
	}
	j.whole = q.whole[:gather(q.whole[:j.size], j.pieces)]
}

// segments sends a frame as segments with all checksums complete.
func (q *queue) segments(p *Port, in *inbox, j *job) {
	if !q.cut.Start(j.whole, &j.h) {
		q.count(countBadOffload)
		return
	}
	q.count(countSegmented)
	for s := q.cut.Next(q.segment); s != nil; s = q.cut.Next(q.segment) {
		q.one[0] = s
		lost(p, in.put(q.one[:]) == 1)
	}
}
