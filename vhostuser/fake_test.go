package vhostuser

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// hangs bounds waits; it is no measurement.
const hangs = 20 * time.Second

const (
	offer      = virtio.FeatureVersion1 | virtio.FeatureMrgRxBuf | virtio.FeatureCtrlVQ | virtio.FeatureEventIdx
	protoOffer = ProtocolMQ | ProtocolReplyAck | ProtocolBackendReq | ProtocolConfig | ProtocolConfigureMemSlots |
		ProtocolStatus | ProtocolResetDevice | ProtocolMTU | ProtocolRARP
	fakeRings = 5
)

var errFake = errors.New("the fake says no")

// fake is a back-end that records what it is told and checks the order.
type fake struct {
	mu    sync.Mutex
	calls []string
	// bad are calls that a session must not make.
	bad []string
	// fail has the calls that fail, by name.
	fail map[string]bool
	// base is what StopRing answers.
	base      uint32
	logs      bool // LOG_SHMFD is on offer
	log       *guestmem.Log
	features  virtio.Features
	mem       *guestmem.Map
	rings     [fakeRings]fakeRing
	status    uint8
	channel   *BackendChannel
	connected bool
	sessions  int
}

type fakeRing struct {
	started, enabled bool
	config           RingConfig
	kick, call, err  int
}

func newFake() *fake {
	f := &fake{fail: make(map[string]bool), mem: guestmem.Empty()}
	for i := range f.rings {
		f.rings[i] = fakeRing{kick: -1, call: -1, err: -1}
	}
	return f
}

// told records a call and says whether it fails. The caller holds mu.
func (f *fake) told(name, format string, args ...any) error {
	f.calls = append(f.calls, strings.TrimSpace(name+" "+fmt.Sprintf(format, args...)))
	if !f.connected {
		f.wrong("%s without a session", name)
	}
	if f.fail[name] {
		return errFake
	}
	return nil
}

func (f *fake) wrong(format string, args ...any) { f.bad = append(f.bad, fmt.Sprintf(format, args...)) }

// take returns the calls since the last time.
func (f *fake) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

func (f *fake) lock() func() { f.mu.Lock(); return f.mu.Unlock }

func (f *fake) failing(name string, on bool) { defer f.lock()(); f.fail[name] = on }

// stopAt sets what StopRing answers.
func (f *fake) stopAt(base uint32) { defer f.lock()(); f.base = base }

func (f *fake) Features() virtio.Features { return offer | virtio.FeatureRingPacked }
func (f *fake) NumRings() int             { return fakeRings }
func (f *fake) QueueNum() uint64          { return 2 }

func (f *fake) ProtocolFeatures() ProtocolFeatures {
	defer f.lock()()
	if f.logs {
		return protoOffer | ProtocolLogSHMFD
	}
	return protoOffer
}

func (f *fake) Connected() {
	defer f.lock()()
	if f.connected {
		f.wrong("Connected twice")
	}
	f.connected = true
	f.sessions++
}

func (f *fake) SetBackendChannel(ch *BackendChannel) {
	defer f.lock()()
	_ = f.told("SetBackendChannel", "%v", ch != nil)
	f.channel = ch
}

func (f *fake) SetFeatures(v virtio.Features) error {
	defer f.lock()()
	err := f.told("SetFeatures", "%#x", uint64(v))
	if v&^f.Features() != 0 {
		f.wrong("SetFeatures %v", v)
	}
	for i, r := range f.rings {
		if r.started {
			f.wrong("SetFeatures with ring %d started", i)
		}
	}
	if err == nil {
		f.features = v
	}
	return err
}

func (f *fake) SetMemory(m *guestmem.Map) error {
	defer f.lock()()
	if err := f.told("SetMemory", "%d", len(m.Regions())); err != nil {
		return err
	}
	f.mem.Release()
	f.mem = m.Retain()
	return nil
}

func (f *fake) SetLog(l *guestmem.Log) {
	defer f.lock()()
	_ = f.told("SetLog", "%t", l != nil)
	f.log.Release()
	f.log = l.Retain()
}

func (f *fake) StartRing(i int, c RingConfig, kick int) error {
	defer f.lock()()
	err := f.told("StartRing", "%d size %d base %d", i, c.Size, c.Base)
	r := &f.rings[i]
	if r.started {
		f.wrong("StartRing %d twice", i)
	}
	if err != nil {
		closeFDs([]int{kick})
		return err
	}
	r.started, r.config, r.kick = true, c, kick
	return nil
}

func (f *fake) StopRing(i int) (uint32, error) {
	defer f.lock()()
	err := f.told("StopRing", "%d", i)
	r := &f.rings[i]
	if !r.started {
		f.wrong("StopRing %d of one that is stopped", i)
	}
	closeFDs([]int{r.kick})
	r.started, r.kick = false, -1
	return f.base, err
}

func (f *fake) EnableRing(i int, on bool) error {
	defer f.lock()()
	err := f.told("EnableRing", "%d %v", i, on)
	f.rings[i].enabled = on
	return err
}

func (f *fake) SetRingAddr(i int, c RingConfig) error {
	defer f.lock()()
	if !f.rings[i].started {
		f.wrong("SetRingAddr %d of one that is stopped", i)
	}
	return f.told("SetRingAddr", "%d %#x", i, c.Desc)
}

// swap owns the descriptor also on failure.
func (f *fake) swap(name string, i int, old *int, fd int) error {
	err := f.told(name, "%d %v", i, fd >= 0)
	if err != nil {
		closeFDs([]int{fd})
		return err
	}
	closeFDs([]int{*old})
	*old = fd
	return nil
}

func (f *fake) SetRingKick(i, fd int) error {
	defer f.lock()()
	if !f.rings[i].started {
		f.wrong("SetRingKick %d of one that is stopped", i)
	}
	return f.swap("SetRingKick", i, &f.rings[i].kick, fd)
}

func (f *fake) SetRingCall(i, fd int) error {
	defer f.lock()()
	return f.swap("SetRingCall", i, &f.rings[i].call, fd)
}

func (f *fake) SetRingErr(i, fd int) error {
	defer f.lock()()
	return f.swap("SetRingErr", i, &f.rings[i].err, fd)
}

func (f *fake) GetConfig(off, n uint32) ([]byte, error) {
	defer f.lock()()
	if err := f.told("GetConfig", "%d %d", off, n); err != nil {
		return nil, err
	}
	if uint64(off)+uint64(n) > 256 {
		return nil, errFake
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(off) + byte(i)
	}
	return b, nil
}

func (f *fake) SetConfig(off, flags uint32, data []byte) error {
	defer f.lock()()
	return f.told("SetConfig", "%d %d % x", off, flags, data)
}

func (f *fake) SetStatus(s uint8) error {
	defer f.lock()()
	f.status = s
	return f.told("SetStatus", "%d", s)
}

func (f *fake) Status() uint8 { defer f.lock()(); return f.status }

func (f *fake) SetMTU(mtu uint64) error {
	defer f.lock()()
	return f.told("SetMTU", "%d", mtu)
}

func (f *fake) SendRARP(mac [6]byte) error {
	defer f.lock()()
	return f.told("SendRARP", "%x", mac)
}

func (f *fake) ResetDevice() error {
	defer f.lock()()
	err := f.told("ResetDevice", "")
	for i := range f.rings {
		r := &f.rings[i]
		closeFDs([]int{r.kick})
		r.started, r.enabled, r.kick = false, false, -1
	}
	return err
}

func (f *fake) Disconnected() {
	defer f.lock()()
	if !f.connected {
		f.wrong("Disconnected without a session")
	}
	for i := range f.rings {
		r := &f.rings[i]
		if r.started {
			f.wrong("ring %d is left started", i)
		}
		closeFDs([]int{r.kick, r.call, r.err})
		f.rings[i] = fakeRing{kick: -1, call: -1, err: -1}
	}
	if f.channel != nil {
		f.wrong("the channel is left")
	}
	f.mem.Release()
	f.mem = guestmem.Empty()
	f.connected = false
}
