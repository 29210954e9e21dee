package netdev

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/ctrlq"
	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

const (
	// maxRequest bounds a control command: header and two MAC tables of several
	// thousand entries.
	maxRequest = 64 << 10
	// controlBurst bounds the commands answered before the mailbox is looked at.
	controlBurst = 16
)

// controller serves the control queue. The driver busy-waits for each answer,
// in Linux with a lock held, so commands are answered at once and always.
type controller struct {
	*loop
	dev      *Device
	ring     ring
	features virtio.Features
	batch    *vring.Batch
	req      []byte
	dirty    *guestmem.Log // as in a worker
	quit     bool
	done     chan struct{}

	ok, bad  count
	lastErr  atomic.Pointer[error] // why the last command that failed did
	commands [ctrlClasses][ctrlCommands]count
}

// Bounds of the command counters: classes up to STATS, commands up to
// VIRTIO_NET_CTRL_RX_NOBCAST.
const ctrlClasses, ctrlCommands = 9, 6

func newController(d *Device, c *queueCounters) (*controller, error) {
	l, err := newLoop()
	if err != nil {
		return nil, err
	}
	k := &controller{loop: l, dev: d, ring: newRing(len(d.rings)-1, c), done: make(chan struct{})}
	go k.run()
	return k, nil
}

func (k *controller) stop() {
	_ = k.post(func() { k.quit = true })
	<-k.done
}

// post2 is post that reports in err if the worker has ended.
func (k *controller) post2(f func(), err *error) {
	if e := k.post(f); e != nil {
		*err = e
	}
}

func (k *controller) run() {
	defer close(k.done)
	for {
		if k.mail.Load() {
			k.deliver()
			if k.quit {
				k.shut()
				return
			}
		}
		more := false
		k.guard(func() { more = k.serve() })
		if more {
			continue
		}
		timeout := -1
		if k.ring.polled {
			timeout = pollInterval
		}
		k.wait(timeout, func(s source, _ uint32) {
			if s.tag == tagControlKick {
				k.ring.c.kicks.add(1)
				k.ring.due = true
			}
		})
	}
}

// guard runs f; a fault in guest memory breaks the control ring.
func (k *controller) guard(f func()) {
	if err := guestmem.CatchFaults(f); err != nil && k.ring.q != nil {
		k.ring.breakWith(err, k.dev.log)
	}
}

// serve answers one burst and reports whether more may be there.
func (k *controller) serve() bool {
	r := &k.ring
	if !r.live() || !r.served() || r.q.Broken() != nil {
		return false
	}
	k.batch.Reset()
	n, err := r.q.Pop(k.batch, controlBurst)
	if err != nil {
		k.ring.breakWith(err, k.dev.log)
		return false
	}
	for i := range n {
		c := &k.batch.Chains[i]
		r.q.Complete(c, k.answer(c, i))
		r.q.Publish()
		// Each answer is announced by itself: a driver sends one at a time.
		if r.q.NeedSignal() {
			if r.call >= 0 {
				r.ringBell(r.call)
			}
		} else {
			r.c.suppressed.add(1)
		}
	}
	if n > 0 {
		r.c.packets.add(uint64(n))
		return true
	}
	r.due = r.enableKicks()
	return r.due
}

// answer carries out one command and returns how many bytes of the reply were
// written.
func (k *controller) answer(c *vring.Chain, i int) uint32 {
	if c.Fault != 0 {
		k.ring.c.drop(dropMalformed, 1)
		k.bad.add(1)
		return 0
	}
	if c.ReadLen > maxRequest {
		k.bad.add(1)
		return refuse(k.batch.Writable(i))
	}
	// The one copy: what is checked is what is used.
	k.req = k.req[:0]
	for _, seg := range k.batch.Readable(i) {
		k.req = append(k.req, seg...)
	}
	k.ring.c.bytes.add(uint64(len(k.req)))
	res := ctrlq.Dispatch(k.features, (*commands)(k.dev), k.req, k.batch.Writable(i))
	if res.Err != nil || res.Ack != virtio.CtrlOK {
		k.bad.add(1)
		k.lastErr.Store(&res.Err)
		return res.Written
	}
	k.ok.add(1)
	if res.Class < ctrlClasses && res.Command < ctrlCommands {
		k.commands[res.Class][res.Command].add(1)
	}
	return res.Written
}

// refuse writes an error into the first byte of a reply, if there is one.
func refuse(reply [][]byte) uint32 {
	if len(reply) == 0 {
		return 0
	}
	reply[0][0] = virtio.CtrlErr
	return 1
}

func (k *controller) attach(index int, q vring.Queue, fds ringFDs, f virtio.Features) error {
	if fds.kick >= 0 {
		if err := k.add(fds.kick, source{tag: tagControlKick}, unix.EPOLLIN); err != nil {
			return err
		}
	}
	if k.batch == nil {
		k.batch = vring.NewBatch(controlBurst, maxSegs)
	}
	r := &k.ring
	r.index, r.q, r.ringFDs, r.polled, r.paused, r.due = index, q, fds, fds.kick < 0, false, true
	r.c.why.Store(nil)
	k.features = f
	r.setLog(k.dirty, k.batch)
	return nil
}

func (k *controller) detach() (base uint32) {
	r := &k.ring
	if r.q == nil {
		return 0
	}
	if r.kick >= 0 {
		k.remove(r.kick)
		closeFD(r.kick)
	}
	k.guard(func() { base = r.q.Stop().Base })
	r.q, r.ringFDs, r.polled, r.paused = nil, noFDs, false, false
	return base
}

func (k *controller) rebind(m *guestmem.Map) {
	if r := &k.ring; r.q != nil {
		k.guard(func() { r.paused = r.q.Rebind(m) != nil })
	}
}

func (k *controller) setAddr(c vhostuser.RingConfig) (err error) {
	r := &k.ring
	if r.q == nil {
		return nil
	}
	k.guard(func() {
		if err = r.q.SetAddr(c.Desc, c.Driver, c.Device); err == nil {
			r.paused = false
			r.logged = logged{c.Log, c.LogAddr}
			r.setLog(k.dirty, k.batch)
		}
	})
	return err
}
