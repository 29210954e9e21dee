package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// frameLength is that of the smallest frame, without its checksum.
const frameLength = 60

// localEtherType is for experiments (IEEE 802): no protocol takes such a frame,
// so the guest's stack drops it as early as it can.
const localEtherType = 0x88b5

// How many frames and datagrams a second are offered, by lane: what its guest
// takes without losing many.
var (
	rawRates = map[string]int{"native": 60000, "uml": 40000, "netdev": 25000, "test-device": 25000}
	udpRates = map[string]int{"native": 20000, "uml": 10000, "netdev": 10000, "test-device": 10000}
)

// rawRX offers frames at a fixed rate, which the guest's stack drops.
func rawRX() workload {
	return workload{
		name: "raw-rx-60", kind: kindBulk, direction: "rx", paced: true, quick: true,
		about: "frames of 60 bytes from the host at a fixed rate, dropped by the guest's stack; packets that the device delivered",
		run: func(ctx context.Context, b *bench, l load) (outcome, error) {
			p := &pacer{rate: rawRates[b.site.Lane()], length: time.Duration(l.seconds * float64(time.Second))}
			err := onHost(b.site, func() error { return sendFrames(ctx, p) })
			return outcome{unit: "packets/s", extra: p.extra()}, err
		},
	}
}

// sendFrames sends broadcast frames through the TAP.
func sendFrames(ctx context.Context, p *pacer) error {
	link, err := net.InterfaceByName(tapName)
	if err != nil {
		return err
	}
	// Protocol 0: the socket receives nothing.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("packet socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		return fmt.Errorf("packet socket: %w", err)
	}
	frame := make([]byte, frameLength)
	copy(frame, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02, 0, 0, 0, 0, 1, localEtherType >> 8, localEtherType & 0xff})
	to := &unix.SockaddrLinklayer{Ifindex: link.Index, Halen: 6}
	copy(to.Addr[:], frame[:6])
	return p.run(ctx, func(int) error {
		if err := unix.Sendto(fd, frame, 0, to); err != nil {
			return fmt.Errorf("send a frame: %w", err)
		}
		return nil
	})
}

// askEvery is of how many paced datagrams sockperf's server answers one.
const askEvery = 50

// pacedUDP offers datagrams at a fixed rate to sockperf's server in the guest,
// and measures how long some of them take to come back.
func pacedUDP() workload {
	return workload{
		name: "udp-rx-paced", kind: kindBulk, direction: "rx", paced: true, quick: true,
		about: fmt.Sprintf("UDP messages of 16 bytes from the host at a fixed rate (%d/s native, %d/s otherwise), sockperf server in the guest; "+
			"packets that the device passed on, and the round trip of each %dth", udpRates["native"], udpRates["netdev"], askEvery),
		prepare: sockperfServer("rx", "udp"),
		run: func(ctx context.Context, b *bench, l load) (outcome, error) {
			e := &echoes{pacer: pacer{rate: udpRates[b.site.Lane()], length: time.Duration(l.seconds * float64(time.Second))}}
			lat, err := e.run(ctx, b.site)
			extra := e.extra()
			extra["answers/s"] = float64(e.answers) / l.seconds
			return outcome{unit: "packets/s", latency: lat, extra: extra}, err
		},
	}
}

// echoes sends paced messages of sockperf's and takes the times of answers.
type echoes struct {
	pacer
	fd int
	// at is when the messages that are answered were sent, since start, in ns.
	start time.Time
	at    []atomic.Int64
	// trips are the round trips in microseconds.
	trips   []float64
	answers int
}

func (e *echoes) run(ctx context.Context, s site) (_ *latency, err error) {
	e.at = make([]atomic.Int64, int(float64(e.rate)*e.length.Seconds())/askEvery+2)
	e.start = time.Now()
	received := make(chan error, 1)
	err = onHost(s, func() error {
		if err := e.open(); err != nil {
			return err
		}
		go func() { received <- onHost(s, e.receive) }()
		return e.pacer.run(ctx, e.send)
	})
	if e.fd <= 0 {
		return nil, err
	}
	// The last answers may be under way.
	err = errors.Join(err, pause(ctx, 20*time.Millisecond))
	// Whoever receives wakes up.
	_ = unix.Shutdown(e.fd, unix.SHUT_RDWR)
	err = errors.Join(err, <-received, unix.Close(e.fd))
	if err != nil {
		return nil, err
	}
	return summarize(e.trips)
}

// open connects a socket of the thread's namespace.
func (e *echoes) open() (err error) {
	if e.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return fmt.Errorf("UDP socket: %w", err)
	}
	to := &unix.SockaddrInet4{Port: udpPort, Addr: netip.MustParseAddr(guestAddress).As4()}
	if err := unix.Connect(e.fd, to); err != nil {
		err = fmt.Errorf("UDP socket: %w", err)
		e.fd, err = 0, errors.Join(err, unix.Close(e.fd))
		return err
	}
	return nil
}

// A message of sockperf's begins with a sequence number of 8 bytes, flags of 2 and
// its length in 4, in network order.
const (
	messageLength = 16
	fromClient    = 1
	wantsAnswer   = 2
)

func message(n int, flags uint16) (m [messageLength]byte) {
	binary.BigEndian.PutUint64(m[:], uint64(n))
	binary.BigEndian.PutUint16(m[8:], flags)
	binary.BigEndian.PutUint32(m[10:], messageLength)
	return m
}

func (e *echoes) send(n int) error {
	flags := uint16(fromClient)
	if n%askEvery == 0 && n/askEvery < len(e.at) {
		flags |= wantsAnswer
		e.at[n/askEvery].Store(int64(time.Since(e.start)))
	}
	m := message(n, flags)
	if _, err := unix.Write(e.fd, m[:]); err != nil {
		return fmt.Errorf("send a datagram: %w", err)
	}
	return nil
}

func (e *echoes) receive() error {
	var m [messageLength]byte
	for {
		n, err := unix.Read(e.fd, m[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("receive a datagram: %w", err)
		}
		if n == 0 {
			return nil // shut down
		}
		now := time.Since(e.start)
		i := binary.BigEndian.Uint64(m[:]) / askEvery
		if n < messageLength || i >= uint64(len(e.at)) {
			continue
		}
		e.answers++
		if sent := e.at[i].Load(); sent > 0 {
			const us = 1e3
			e.trips = append(e.trips, float64(int64(now)-sent)/us)
		}
	}
}

// summarize needs at least one round trip, in microseconds.
func summarize(trips []float64) (*latency, error) {
	if len(trips) == 0 {
		return nil, errors.New("no datagram was answered")
	}
	v := slices.Sorted(slices.Values(trips))
	sum := 0.0
	for _, t := range v {
		sum += t
	}
	at := func(share float64) float64 { return v[min(int(share*float64(len(v))), len(v)-1)] }
	l := &latency{Avg: sum / float64(len(v)), P50: at(0.5), P99: at(0.99)}
	// Of fewer it would be the longest.
	if len(v) >= 1000 {
		l.P999 = at(0.999)
	}
	return l, nil
}
