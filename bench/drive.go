package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vhostnet/vhostnet/bench/peer"
	"github.com/vhostnet/vhostnet/driver"
)

const (
	queueSize = 256
	// batch is how many frames the driver moves between two publications, as
	// network stacks and DPDK do.
	batch = peer.Burst
	// window is how many frames are on their way in an echo.
	window = peer.EchoWindow
	// stall is how long a blocking driver waits before it gives up: nothing
	// has come in a time in which millions should have. A host that has more to do
	// than processors can stop a virtual machine for a good part of a second, and
	// one processor of two for longer than the other.
	stall = 10 * time.Second
)

// driveArgs are the command line of the front-end with the embedded driver.
type driveArgs struct {
	Socket   string `required:""`
	Mode     string `enum:"sink,source,echo" required:""`
	Size     int    `required:""`
	Blocking bool
	Packed   bool
}

// Run connects, and measures whenever it is told to.
func (a *driveArgs) Run(s *streams) (err error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: a.Socket, Net: "unix"})
	if err != nil {
		return err
	}
	// VIRTIO_NET_F_MQ has no use here; neither has the control queue.
	d, err := driver.New(conn, driver.Config{QueueSize: queueSize, Polling: !a.Blocking, Packed: a.Packed, Log: quiet()})
	if err != nil {
		return err
	}
	l, err := newLoop(d.Pair(0), peer.Traffic{Mode: a.Mode, Size: a.Size})
	if err == nil {
		err = serveOrders(s.ctx, s.in, s.out, l.measure)
	}
	return errors.Join(err, d.Close())
}

// quiet is the logger of devices and drivers: errors only.
func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

// loop is the driver's side of the traffic. Each step moves one batch, or waits.
type loop struct {
	p    *driver.Pair
	mode string
	size int
	step func() error
	out  int // frames on their way in an echo
}

func newLoop(p *driver.Pair, t peer.Traffic) (*loop, error) {
	f, err := frame(t.Size)
	if err != nil {
		return nil, err
	}
	if err := p.TX.Prepare(f); err != nil {
		return nil, err
	}
	l := &loop{p: p, mode: t.Mode, size: t.Size}
	l.step = map[string]func() error{"sink": l.sink, "source": l.source, "echo": l.echo}[t.Mode]
	return l, nil
}

// serveOrders answers orders until there are no more: the driver's side of
// [peer.Driver].
func serveOrders(ctx context.Context, in io.Reader, out io.Writer, measure func(context.Context, peer.Order) (peer.Window, error)) error {
	orders := bufio.NewScanner(in)
	for {
		if _, err := io.WriteString(out, peer.DriverPrompt); err != nil {
			return err
		}
		if !orders.Scan() {
			return orders.Err()
		}
		var o peer.Order
		if err := json.Unmarshal(orders.Bytes(), &o); err != nil {
			return fmt.Errorf("order %q: %w", orders.Text(), err)
		}
		var a peer.Answer
		var err error
		if a.Window, err = measure(ctx, o); err != nil {
			a.Error = err.Error()
		}
		if err := json.NewEncoder(out).Encode(a); err != nil {
			return err
		}
	}
}

// measure runs traffic, first to warm up.
func (l *loop) measure(ctx context.Context, o peer.Order) (w peer.Window, err error) {
	if _, err := l.run(ctx, o.WarmUp); err != nil {
		return w, err
	}
	rx, tx := l.p.RX, l.p.TX
	rx.Settle()
	tx.Settle()
	rx0, tx0 := rx.Counters(), tx.Counters()
	cpu0, err := peer.CPUTime(o.BackEnd)
	if err != nil {
		return w, err
	}
	took, err := l.run(ctx, o.Length)
	if err != nil {
		return w, err
	}
	cpu1, err := peer.CPUTime(o.BackEnd)
	if err != nil {
		return w, err
	}
	rx.Settle()
	tx.Settle()
	r, t := rx.Counters().Sub(rx0), tx.Counters().Sub(tx0)
	packets := r.Packets
	if l.mode == "sink" {
		packets = t.Completed
	}
	return peer.Window{
		Packets: float64(packets), Seconds: took.Seconds(), CPUSeconds: (cpu1 - cpu0).Seconds(),
		Counted: true, Calls: float64(r.Notifications + t.Notifications), Kicks: float64(r.Kicks + t.Kicks),
	}, nil
}

// run repeats the step for the given time and returns how long it really took.
func (l *loop) run(ctx context.Context, length time.Duration) (time.Duration, error) {
	start := time.Now()
	for i := 1; ; i++ {
		if err := l.step(); err != nil {
			return 0, err
		}
		if i%16 != 0 {
			continue
		}
		if took := time.Since(start); took >= length {
			return took, nil
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
	}
}

func (l *loop) sink() error {
	if l.p.TX.SendPrepared(batch, l.size) > 0 {
		l.p.TX.Flush()
		return nil
	}
	return l.ended(l.p.TX.Wait(stall))
}

func (l *loop) source() error {
	if l.p.RX.Drop(2*batch) > 0 {
		return nil
	}
	return l.ended(l.p.RX.Wait(stall))
}

func (l *loop) echo() error {
	l.out -= l.p.RX.Drop(2 * batch)
	sent := l.p.TX.SendPrepared(window-l.out, l.size)
	l.out += sent
	if sent > 0 {
		l.p.TX.Flush()
		return nil
	}
	return l.ended(l.p.RX.Wait(stall))
}

// ended makes an error of a wait that nothing ended.
func (l *loop) ended(ready bool, err error) error {
	if err == nil && !ready {
		return fmt.Errorf("nothing came back in %v:\n%s", stall, l.p.State())
	}
	return err
}

const (
	etherLen = 14
	ipLen    = 20
	udpLen   = 8
)

// frame is what the driver sends: UDP from the guest to the host, as virtio-user's
// frames are.
func frame(size int) ([]byte, error) {
	if size < etherLen+ipLen+udpLen || size-etherLen > 65535 {
		return nil, fmt.Errorf("frame of %d bytes: want %d to %d", size, etherLen+ipLen+udpLen, 65535+etherLen)
	}
	f := make([]byte, size)
	for i, s := range []string{peer.HostMAC, peer.GuestMAC} {
		mac, err := net.ParseMAC(s)
		if err != nil {
			return nil, err
		}
		copy(f[6*i:], mac)
	}
	be := binary.BigEndian
	be.PutUint16(f[12:], 0x0800)
	ip := f[etherLen:]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	be.PutUint16(ip[2:], uint16(len(ip)))
	for i, s := range []string{peer.GuestIP, peer.HostIP} {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, err
		}
		copy(ip[12+4*i:], a.AsSlice())
	}
	be.PutUint16(ip[10:], ^sum(ip[:ipLen]))
	udp := ip[ipLen:] // its checksum of zero means that there is none
	be.PutUint16(udp, peer.GuestPort)
	be.PutUint16(udp[2:], peer.HostPort)
	be.PutUint16(udp[4:], uint16(len(udp)))
	return f, nil
}

// sum is the Internet checksum before it is complemented, of an even number of
// bytes.
func sum(b []byte) uint16 {
	var n uint32
	for i := 0; i < len(b); i += 2 {
		n += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for n > 0xffff {
		n = n>>16 + n&0xffff
	}
	return uint16(n)
}
