package faults

import (
	"bytes"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

// optional is a request that belongs to a protocol feature.
type optional struct {
	feature vhostuser.ProtocolFeatures
	request vhostuser.Request
	payload []byte
	// files is how many descriptors go with it, socket instead that one end of a
	// socket pair does.
	files  int
	socket bool
	// hard: whether it is carried out depends on more than the feature, or cannot be
	// seen from its answer.
	hard bool
}

func optionals() []optional {
	config := append(scripted.U32(0, 6, 0), make([]byte, 6)...)
	region := append(scripted.U64(0), scripted.TablePayload(1, region(1<<33, 0x1000, scripted.UserBase+1<<33, 0))[8:]...)
	return []optional{
		{feature: vhostuser.ProtocolLogSHMFD, request: vhostuser.ReqSetLogBase, payload: append(scripted.U64(0x1000), scripted.U64(0)...), files: 1},
		{feature: vhostuser.ProtocolLogSHMFD, request: vhostuser.ReqSetLogFD, files: 1},
		{feature: vhostuser.ProtocolRARP, request: vhostuser.ReqSendRARP, payload: []byte{2, 0, 0, 0, 0, 1, 0, 0}},
		{feature: vhostuser.ProtocolMTU, request: vhostuser.ReqNetSetMTU, payload: scripted.U64(1400)},
		{feature: vhostuser.ProtocolBackendReq, request: vhostuser.ReqSetBackendReqFD, socket: true},
		{feature: vhostuser.ProtocolCrossEndian, request: vhostuser.ReqSetVringEndian, payload: scripted.U32(0, 0)},
		{feature: vhostuser.ProtocolCryptoSession, request: 26, payload: make([]byte, 64), hard: true},
		{feature: vhostuser.ProtocolCryptoSession, request: 27, payload: make([]byte, 8), hard: true},
		{feature: vhostuser.ProtocolPageFault, request: vhostuser.ReqPostcopyAdvise, hard: true},
		{feature: vhostuser.ProtocolPageFault, request: vhostuser.ReqPostcopyListen, hard: true},
		{feature: vhostuser.ProtocolPageFault, request: vhostuser.ReqPostcopyEnd, hard: true},
		{feature: vhostuser.ProtocolConfig, request: vhostuser.ReqGetConfig, payload: config},
		{feature: vhostuser.ProtocolConfig, request: vhostuser.ReqSetConfig, payload: config},
		{feature: vhostuser.ProtocolInflightSHMFD, request: vhostuser.ReqGetInflightFD, payload: inflight(0, 0, 2, 256)},
		{feature: vhostuser.ProtocolResetDevice, request: vhostuser.ReqResetDevice},
		{feature: vhostuser.ProtocolInbandNotifications, request: vhostuser.ReqVringKick, payload: scripted.U32(0, 0), hard: true},
		{feature: vhostuser.ProtocolConfigureMemSlots, request: vhostuser.ReqGetMaxMemSlots, hard: true},
		{feature: vhostuser.ProtocolConfigureMemSlots, request: vhostuser.ReqAddMemReg, payload: region, files: 1},
		{feature: vhostuser.ProtocolConfigureMemSlots, request: vhostuser.ReqRemMemReg, payload: region, hard: true}, // it is not there
		{feature: vhostuser.ProtocolStatus, request: vhostuser.ReqSetStatus, payload: scripted.U64(0)},
		{feature: vhostuser.ProtocolStatus, request: vhostuser.ReqGetStatus, hard: true},
		{feature: vhostuser.ProtocolSharedObject, request: 41, payload: make([]byte, 16)},
		{feature: vhostuser.ProtocolDeviceState, request: vhostuser.ReqSetDeviceStateFD, payload: scripted.U32(0, 0), files: 1, hard: true},
		{feature: vhostuser.ProtocolDeviceState, request: vhostuser.ReqCheckDeviceState, hard: true},
		{feature: vhostuser.ProtocolSHMEM, request: vhostuser.ReqGetShmemConfig},
		{feature: vhostuser.ProtocolGetVringBaseSkipDrain, request: 45, payload: scripted.U32(0, 0)},
	}
}

// P16: what is offered is done, and what is not offered, or not negotiated, is
// refused. Each request has one reply and leaves nothing.
func TestP16Optional(t *testing.T) {
	t.Parallel()
	c := scripted.Serve(t, "echo", "--mac=52:54:00:12:34:56")
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(ends[0]), unix.Close(ends[1]) }()
	file := scripted.Memfd(t, 0x1000)
	for _, o := range optionals() {
		fds := slices.Repeat([]int{file}, o.files)
		if o.socket {
			fds = []int{ends[1]}
		}
		for _, with := range []bool{false, true} {
			g := c.Dial(t)
			offer, err := g.GetProtocolFeatures()
			g.Must(err)
			p := vhostuser.ProtocolReplyAck
			if with && offer&o.feature == 0 {
				g.Must(g.SetProtocolFeatures(p))
				g.Refused(vhostuser.ReqSetProtocolFeatures, scripted.U64(uint64(p|o.feature)))
				with = false
			} else if with {
				p |= o.feature
			}
			g.Must(g.SetProtocolFeatures(p))
			g.Must(g.SetFeatures(scripted.Default))
			b, got := reply(t, g, o.request, o.payload, fds...)
			for _, fd := range got {
				_ = unix.Close(fd)
			}
			if no := refusal(o.request, b, got); no == with && !(o.hard && with) {
				t.Errorf("%s: offered and negotiated: %t; refused: %t: % x", o.request, with, no, b)
			}
			g.Must(g.Close())
			c.Idle()
		}
	}
	c.Alive()
}

// P16: protocol features that nobody has, virtio features that need more than this
// protocol has, and IOTLB messages without ACCESS_PLATFORM.
func TestP16NeverOffered(t *testing.T) {
	t.Parallel()
	c := scripted.Serve(t, "echo", "--queue-pairs=3")
	g := c.Dial(t)
	offer, err := g.GetFeatures()
	g.Must(err)
	// Their messages do not reach a back-end, or they are another device's.
	for _, f := range []virtio.Features{
		virtio.FeatureRingReset, virtio.FeatureNotificationData, virtio.FeatureOrderPlatform, 1 << 39, 1 << 41, 1 << 43,
	} {
		if offer&f != 0 {
			t.Errorf("%v is offered", f)
		}
		g.Must(g.SetProtocolFeatures(vhostuser.ProtocolReplyAck))
		g.Refused(vhostuser.ReqSetFeatures, scripted.U64(uint64(scripted.Default|f)))
	}
	protocol, err := g.GetProtocolFeatures()
	g.Must(err)
	for _, p := range []vhostuser.ProtocolFeatures{
		vhostuser.ProtocolCrossEndian, vhostuser.ProtocolCryptoSession, vhostuser.ProtocolHostNotifier,
		vhostuser.ProtocolXenMmap, vhostuser.ProtocolSharedObject, vhostuser.ProtocolSHMEM, 1 << 24, 1 << 63,
	} {
		if protocol&p != 0 {
			t.Errorf("%v is offered", p)
		}
		g.Refused(vhostuser.ReqSetProtocolFeatures, scripted.U64(uint64(vhostuser.ProtocolReplyAck|p)))
	}
	g.Refused(vhostuser.ReqIOTLBMsg, make([]byte, 32))
	// All rings count: front-ends compare it with pairs or with rings.
	if n, err := g.GetQueueNum(); err != nil || n != 7 {
		t.Errorf("%d queues, %v", n, err)
	}
	c.Alive(g)
}

// P15: the same log, and log descriptors, over and over while logging is on; and
// regions of memory up to what there is room for.
func TestP15WhileLogging(t *testing.T) {
	t.Parallel()
	c := scripted.Serve(t, "echo")
	g := c.Dial(t)
	g.Hello(0)
	g.Start(0, 1)
	log := scripted.Memfd(t, 0x1000)
	at := append(scripted.U64(0x1000), scripted.U64(0)...)
	g.Accepted(vhostuser.ReqSetLogBase, at, log)
	g.Must(g.SetFeatures(scripted.Default | virtio.FeatureLogAll))
	c.RoundTrip(g)
	before := c.FDs()
	for range 500 {
		g.Accepted(vhostuser.ReqSetLogBase, at, log)
		g.Accepted(vhostuser.ReqSetLogFD, nil, scripted.Eventfd(t))
	}
	c.RoundTrip(g)
	b := make([]byte, 0x1000)
	if _, err := unix.Pread(log, b, 0); err != nil || bytes.Equal(b, make([]byte, 0x1000)) {
		t.Errorf("nothing is logged, %v", err)
	}
	if after := c.FDs(); after != before {
		t.Errorf("%d descriptors, had %d", after, before)
	}
	g.Must(g.SetFeatures(scripted.Default))
	c.RoundTrip(g)

	slots, err := g.GetMaxMemSlots()
	g.Must(err)
	file := scripted.Memfd(t, 0x1000)
	more := func(i uint64) []byte {
		return append(scripted.U64(0), scripted.TablePayload(1, region(1<<32+i<<16, 0x1000, scripted.UserBase+1<<32+i<<16, 0))[8:]...)
	}
	for i := range slots - 1 { // one is R0
		g.Accepted(vhostuser.ReqAddMemReg, more(i), file)
	}
	for range 100 {
		g.Refused(vhostuser.ReqAddMemReg, more(slots), file)
		g.Refused(vhostuser.ReqAddMemReg, more(slots))
		g.Refused(vhostuser.ReqAddMemReg, more(slots), file, file)
	}
	if n := c.Mapped(); n != int(slots) {
		t.Errorf("%d mappings for %d regions", n, slots)
	}
	c.RoundTrip(g)
	for i := range slots - 1 {
		g.Accepted(vhostuser.ReqRemMemReg, more(i))
	}
	c.RoundTrip(g)
	c.Alive(g)
}
