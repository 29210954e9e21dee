package vhostuser

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// maxLogged bounds the log lines of one session about refused requests: a
// front-end can send them without end.
const maxLogged = 20

// replyTimeout bounds how long a front-end may leave a reply unread.
const replyTimeout = 5 * time.Second

// session is one front-end's connection. It belongs to the goroutine of Serve.
type session struct {
	conn
	b    Backend
	opts Options
	log  *slog.Logger

	features   virtio.Features // negotiated, with bit 30
	negotiated bool
	proto      ProtocolFeatures
	mem        *guestmem.Map
	dirty      *guestmem.Log // nil for none; used while logging is on
	repeats    map[slot]int  // how often a region of mem was added again
	rings      []ringState
	channel    *BackendChannel
	logged     int
}

// ringState is what the session knows of a ring. Started and enabled are two
// independent bits.
type ringState struct {
	RingConfig
	located          bool // has addresses
	started, enabled bool
}

// Serve carries out the requests of the front-end on c until the connection
// ends or ctx does, and closes c. It returns nil when the front-end has hung up
// or ctx is done, an error that wraps [ErrProtocol] when it ended the connection
// itself, or the socket's error.
func Serve(ctx context.Context, c *net.UnixConn, b Backend, opts Options) error {
	opts = opts.withDefaults()
	s := &session{
		conn: conn{c: c}, b: b, opts: opts, log: opts.Log, repeats: map[slot]int{},
		mem: guestmem.Empty(), rings: make([]ringState, b.NumRings()),
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	opts.Counters.Connections.Add(1)
	b.Connected()
	err := s.loop()
	s.end()
	_ = c.Close()
	switch {
	case ctx.Err() != nil, errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), isReset(err):
		return nil
	case errors.Is(err, ErrProtocol):
		opts.Counters.violation(err)
	}
	return err
}

func (s *session) loop() error {
	for {
		m, err := s.read()
		if err != nil {
			return err
		}
		s.opts.Counters.request(m.Request)
		err = s.handle(m)
		m.close()
		if err != nil {
			return err
		}
	}
}

// end stops what the front-end has started.
func (s *session) end() {
	for i := range s.rings {
		if s.rings[i].started {
			_, _ = s.stopRing(i)
		}
	}
	s.setChannel(nil)
	s.dropLog()
	s.b.Disconnected()
	s.mem.Release()
}

// handle carries out one message and replies to it. Its error ends the session.
func (s *session) handle(m *message) error {
	row, known := requests[m.Request]
	var reply []byte
	var err error
	switch {
	case m.Flags&FlagReply != 0:
		return violation("reply", "%s: a reply, to nothing that was asked", m.Request)
	case !known:
		err = refuse("%s is not supported", m.Request)
	case len(m.payload) < row.min || len(m.payload) > row.max:
		return violation("size", "%s: payload of %d bytes", m.Request, len(m.payload))
	case row.needs != 0 && s.proto&row.needs == 0:
		err = refuse("%s needs protocol feature %s", m.Request, row.needs)
	case len(m.fds) > row.fds && !row.reply:
		s.opts.Counters.SurplusFDs.Add(uint64(len(m.fds) - row.fds))
		err = refuse("%s: %d descriptors", m.Request, len(m.fds))
	default:
		// A request with a reply of its own is answered also when it comes with
		// descriptors: they are closed, and nothing else is left waiting.
		if n := len(m.fds); n > row.fds {
			s.opts.Counters.SurplusFDs.Add(uint64(n - row.fds))
		}
		reply, err = row.do(s, m)
	}
	if errors.Is(err, ErrProtocol) {
		return err
	}
	if err != nil {
		s.refused(m.Request, err)
	}
	m.close() // what is confirmed is done, this too
	return s.reply(m, row.reply, reply, err)
}

func (s *session) refused(r Request, err error) {
	s.opts.Counters.Refused.Add(1)
	if s.logged++; s.logged < maxLogged {
		s.log.Warn("request refused", "request", r.String(), "error", err)
	} else if s.logged == maxLogged {
		s.log.Warn("request refused; further ones of this connection are only counted", "request", r.String(), "error", err)
	}
}

// reply sends at most one reply: the request's own, or if it has none and the
// front-end has asked, whether it was carried out. Of SET_LOG_BASE it always is.
func (s *session) reply(m *message, own bool, payload []byte, err error) error {
	ack := m.Flags&FlagNeedReply != 0 && s.proto&ProtocolReplyAck != 0 ||
		m.Request == ReqSetLogBase && s.proto&ProtocolLogSHMFD != 0
	switch {
	case own:
	case ack:
		payload = make([]byte, 8)
		if err != nil {
			ne.PutUint64(payload, 1)
		}
	default:
		return nil
	}
	_ = s.c.SetWriteDeadline(time.Now().Add(replyTimeout))
	return s.write(Header{m.Request, FlagVersion | FlagReply, uint32(len(payload))}, payload, nil)
}

// ring returns the state of ring i, checked in full width.
func (s *session) ring(i uint32) (*ringState, error) {
	if uint64(i) >= uint64(len(s.rings)) {
		return nil, refuse("ring %d: there are %d", i, len(s.rings))
	}
	return &s.rings[i], nil
}

func (s *session) stopRing(i int) (uint32, error) {
	r := &s.rings[i]
	if !r.started {
		return r.Base, nil
	}
	base, err := s.b.StopRing(i)
	r.started, r.Base = false, base
	return base, err
}

func (s *session) enable(i int, on bool) error {
	r := &s.rings[i]
	if r.enabled == on {
		return nil
	}
	if err := s.b.EnableRing(i, on); err != nil {
		return err // asked again, the back-end is told again
	}
	r.enabled = on
	return nil
}

func (s *session) setChannel(ch *BackendChannel) {
	old := s.channel
	if old == nil && ch == nil {
		return
	}
	s.channel = ch
	s.b.SetBackendChannel(ch)
	if old != nil {
		old.close()
	}
}
