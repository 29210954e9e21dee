package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/internal/unixsock"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/port/builtin"
	"github.com/vhostnet/vhostnet/vhostuser"
)

// Config says how to run the demonstration.
type Config struct {
	// Seconds is how long it takes altogether, at least 1; 0 means
	// DefaultSeconds.
	Seconds float64
	// Out receives the table as text; nil shows nothing.
	Out io.Writer
	// Live redraws the row of the current step while it is measured, with
	// terminal control sequences. Otherwise a row is written when it is complete.
	Live bool
	// Log receives the device's and the driver's messages; nil discards them.
	Log *slog.Logger
}

const (
	// DefaultSeconds is the length of the demonstration.
	DefaultSeconds = 10
	minSeconds     = 1

	pairs     = 2
	queueSize = 256
)

// Result is what --json prints.
type Result struct {
	Steps []Step `json:"steps"`
}

// Step is one measured setting.
type Step struct {
	Name string `json:"name"`
	// RXUsecs to TXFrames are the notification limits that the device reports,
	// in microseconds and packets.
	RXUsecs  uint32 `json:"rx_usecs"`
	RXFrames uint32 `json:"rx_frames"`
	TXUsecs  uint32 `json:"tx_usecs"`
	TXFrames uint32 `json:"tx_frames"`
	// Packets counts the frames received under load, Notifications what the
	// device sent meanwhile for received frames and for transmitted ones.
	Packets                uint64  `json:"packets"`
	Notifications          uint64  `json:"notifications"`
	NotificationsPerPacket float64 `json:"notifications_per_packet"`
	// RTTP50 and RTTP99 are percentiles of the round-trip time of a single frame
	// in microseconds.
	RTTP50 float64 `json:"rtt_p50_us"`
	RTTP99 float64 `json:"rtt_p99_us"`
}

// WriteJSON writes the result as one line.
func (r *Result) WriteJSON(w io.Writer) error {
	if err := json.NewEncoder(w).Encode(r); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	return nil
}

// Run runs the demonstration. It ends early with the context's error when that
// is cancelled.
func Run(ctx context.Context, c Config) (*Result, error) {
	if c.Seconds == 0 {
		c.Seconds = DefaultSeconds
	}
	if c.Seconds < minSeconds {
		return nil, fmt.Errorf("demo: %g seconds: want at least %d", c.Seconds, minSeconds)
	}
	if c.Out == nil {
		c.Out = io.Discard
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	var r *Result
	err := withDriver(ctx, c.Log, func(d *driver.Driver) (err error) {
		r, err = runSteps(ctx, d, &c)
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// withDriver connects a device and a driver, lets use do its work and takes both
// down again.
func withDriver(ctx context.Context, log *slog.Logger, use func(*driver.Driver) error) error {
	front, back, err := unixsock.Pair()
	if err != nil {
		return err
	}
	p, err := builtin.Echo(pairs)
	if err != nil {
		return errors.Join(err, front.Close(), back.Close())
	}
	dev, err := netdev.New(netdev.Config{
		Name: "demo", QueuePairs: pairs, QueueSize: queueSize,
		MAC: [6]byte{0x02, 0x76, 0x68, 0x6e, 0x74, 0x01}, MTU: 1500, Log: log,
	}, p)
	if err != nil {
		return errors.Join(err, p.Close(), front.Close(), back.Close())
	}
	served := make(chan error, 1)
	go func() { served <- vhostuser.Serve(context.WithoutCancel(ctx), back, dev, vhostuser.Options{Log: log}) }()

	d, err := driver.New(front, driver.Config{QueuePairs: pairs, QueueSize: queueSize, Log: log})
	if err == nil {
		err = errors.Join(use(d), d.Close())
	}
	// The driver has closed its end, so the device's session comes to an end too.
	return errors.Join(err, <-served, dev.Close(), p.Close())
}

// sliceTime is how long one kind of traffic lasts before the other one has its
// turn, and with it how often the live table changes.
const sliceTime = 200 * time.Millisecond
