package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// Window is what a front-end saw of one measurement.
type Window struct {
	// Packets were moved within Seconds: frames that the back-end took, or that
	// came back or from it.
	Packets float64 `json:"packets"`
	Seconds float64 `json:"seconds"`
	// Counted says that calls and kicks were counted. Calls are the back-end's
	// writes to the call eventfds.
	Counted bool    `json:"counted"`
	Calls   float64 `json:"calls"`
	Kicks   float64 `json:"kicks"`
	// CPUSeconds is the back-end's processor time.
	CPUSeconds float64 `json:"cpu_seconds"`
}

// ErrNothing means that no packet moved in a window.
var ErrNothing = errors.New("peer: no packets")

// FrontEnd drives a back-end. One goroutine uses it.
type FrontEnd interface {
	// Measure runs traffic: first to warm up, then for the window. backEnd is the
	// process whose processor time counts.
	Measure(ctx context.Context, warmUp, length time.Duration, backEnd int) (Window, error)
	// PID is its process.
	PID() int
	// Close disconnects and ends the process.
	Close() error
}

// virtioUser is DPDK's virtio-user in testpmd. It polls, has no event index and
// never reads its call eventfds.
type virtioUser struct {
	*testpmd
	mode, begin string
}

// virtioUserModes are its forwarding modes and how they begin.
var virtioUserModes = map[string]struct{ forward, begin string }{
	"sink":   {"txonly", "start"},
	"source": {"rxonly", "start"},
	"echo":   {"io", fmt.Sprintf("start tx_first %d", EchoWindow/Burst)},
}

// Rings is how virtio-user sets up its virtqueues.
type Rings struct {
	// Packed rings instead of split ones; InOrder and Mergeable accept IN_ORDER and
	// MRG_RXBUF.
	Packed, InOrder, Mergeable bool
	// Pairs is the number of queue pairs, 1 if it is 0.
	Pairs int
}

// device is virtio-user on a back-end, as testpmd's argument.
func (r Rings) device(socket string) string {
	flag := map[bool]int{true: 1}
	return fmt.Sprintf("net_virtio_user0,path=%s,queues=%d,queue_size=%d,packed_vq=%d,mrg_rxbuf=%d,in_order=%d",
		socket, max(r.Pairs, 1), queueSize, flag[r.Packed], flag[r.Mergeable], flag[r.InOrder])
}

// VirtioUser starts a testpmd that drives the back-end at socket. The frames it
// makes are UDP from GuestIP to HostIP.
func (k *Kit) VirtioUser(ctx context.Context, socket string, t Traffic, r Rings, at Place) (FrontEnd, error) {
	m, ok := virtioUserModes[t.Mode]
	if !ok {
		return nil, fmt.Errorf("peer: virtio-user: no mode %q", t.Mode)
	}
	flags := append(forward(m.forward, t.Size),
		"--tx-ip="+GuestIP+","+HostIP, fmt.Sprintf("--tx-udp=%d,%d", GuestPort, HostPort), "--eth-peer=0,"+HostMAC)
	p, err := k.dpdk.start(ctx, "virtio-user", at, []string{r.device(socket)}, flags)
	if err != nil {
		return nil, err
	}
	return &virtioUser{p, t.Mode, m.begin}, nil
}

// Counted is a virtio-user in front of a back-end that sends every frame back, to
// compare what both have counted.
type Counted struct{ *testpmd }

// CountedVirtioUser starts one with so many queue pairs, whose frames have size bytes.
func (k *Kit) CountedVirtioUser(ctx context.Context, socket string, size int, r Rings, at Place) (*Counted, error) {
	n := max(r.Pairs, 1)
	flags := append(forward("io", size), fmt.Sprintf("--rxq=%d", n), fmt.Sprintf("--txq=%d", n))
	p, err := k.dpdk.start(ctx, "virtio-user", at, []string{r.device(socket)}, flags)
	if err != nil {
		return nil, err
	}
	return &Counted{p}, nil
}

// Run has frames go round until it has sent so many, and then lets none more go.
func (c *Counted) Run(ctx context.Context, packets uint64) error {
	if _, err := c.tell(ctx, fmt.Sprintf("start tx_first %d", EchoWindow/Burst)); err != nil {
		return err
	}
	for {
		s, err := c.stats(ctx)
		switch {
		case err != nil:
			return err
		case s.TXPackets >= packets:
			// What is on its way back is only received from here on.
			for _, command := range []string{"stop", "set fwd rxonly", "start"} {
				if _, err := c.tell(ctx, command); err != nil {
					return err
				}
			}
			return nil
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("%w: %d frames sent of %d", err, s.TXPackets, packets)
		}
	}
}

// Stats is what it has counted.
func (c *Counted) Stats(ctx context.Context) (PortStats, error) { return c.stats(ctx) }

// Close disconnects and ends the process.
func (c *Counted) Close() error { return c.quit("quit") }

func (v *virtioUser) Measure(ctx context.Context, warmUp, length time.Duration, backEnd int) (w Window, err error) {
	if _, err := v.tell(ctx, v.begin); err != nil {
		return Window{}, err
	}
	defer func() {
		if _, serr := v.tell(ctx, "stop"); err == nil {
			err = serr
		}
	}()
	if err := sleep(ctx, warmUp); err != nil {
		return Window{}, err
	}
	before, cpu0, err := v.look(ctx, backEnd)
	if err != nil {
		return Window{}, err
	}
	if err := sleep(ctx, length); err != nil {
		return Window{}, err
	}
	after, cpu1, err := v.look(ctx, backEnd)
	if err != nil {
		return Window{}, err
	}
	packets, rate := after.RXPackets-before.RXPackets, after.RXRate
	if v.mode == "sink" {
		packets, rate = after.TXPackets-before.TXPackets, after.TXRate
	}
	if packets == 0 || rate == 0 {
		return Window{}, fmt.Errorf("%w in %v through %s", ErrNothing, length, v.name)
	}
	// The time is testpmd's own: the answer may have had to wait for the core.
	return Window{
		Packets: float64(packets), Seconds: float64(packets) / float64(rate), CPUSeconds: (cpu1 - cpu0).Seconds(),
	}, nil
}

func (v *virtioUser) look(ctx context.Context, backEnd int) (s PortStats, cpu time.Duration, err error) {
	if s, err = v.stats(ctx); err != nil {
		return s, 0, err
	}
	cpu, err = CPUTime(backEnd)
	return s, cpu, err
}

func (v *virtioUser) Close() error { return v.quit("quit") }

// program is a front-end that takes orders by the line.
type program struct{ *console }

// DriverPrompt is what a program for Driver prints when it waits for an order.
const DriverPrompt = "ready\n"

// Order is a line for such a program, in JSON; it answers with a Window, or with
// an error.
type Order struct {
	WarmUp  time.Duration `json:"warm_up"`
	Length  time.Duration `json:"length"`
	BackEnd int           `json:"back_end"`
}

// Answer is its answer, in JSON.
type Answer struct {
	Window
	Error string `json:"error,omitempty"`
}

// Driver starts a program that is connected to a back-end and has it measured.
func Driver(ctx context.Context, cmd *exec.Cmd, at Place) (FrontEnd, error) {
	c, _, err := startConsole(ctx, "driver", DriverPrompt, cmd, at)
	if err != nil {
		return nil, err
	}
	return program{c}, nil
}

func (p program) Measure(ctx context.Context, warmUp, length time.Duration, backEnd int) (Window, error) {
	order, err := json.Marshal(Order{warmUp, length, backEnd})
	if err != nil {
		return Window{}, err
	}
	s, err := p.do(ctx, string(order))
	if err != nil {
		return Window{}, err
	}
	var a Answer
	if err := json.Unmarshal([]byte(s), &a); err != nil {
		return Window{}, fmt.Errorf("peer: %s: answer %q: %w", p.name, s, err)
	}
	if a.Error != "" {
		return Window{}, fmt.Errorf("peer: %s: %s", p.name, a.Error)
	}
	if a.Packets == 0 || a.Seconds <= 0 {
		return Window{}, fmt.Errorf("%w in %v through %s", ErrNothing, length, p.name)
	}
	return a.Window, nil
}

func (p program) Close() error { return p.quit("") }

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
