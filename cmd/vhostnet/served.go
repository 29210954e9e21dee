package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/fleet"
	"github.com/vhostnet/vhostnet/mgmt"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/vhostuser"
)

// served is a device, where its front-end is found, and its trace.
type served struct {
	dev   *netdev.Device
	end   vhostuser.Endpoint
	trace *traceFile // nil for none
	log   *slog.Logger
}

var _ fleet.Device = (*served)(nil)

// openServed opens a device whose queue pairs a pool serves, nil for threads of their
// own, and, if it is to listen on a path, its socket.
func openServed(log *slog.Logger, pool *netdev.Pool, end vhostuser.Endpoint, f *deviceFlags) (*served, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	s := &served{end: end, log: log.With("device", string(f.Name))}
	var err error
	if s.trace, err = f.openTrace(); err != nil {
		return nil, err
	}
	if s.dev, err = f.open(log, pool, s.trace); err != nil {
		s.trace.close(s.log)
		return nil, err
	}
	if end.Path != "" && !end.Client {
		l, err := vhostuser.Listen(end.Path)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.end.Listener = l
	}
	return s, nil
}

// Serve implements [fleet.Device].
func (s *served) Serve(ctx context.Context) error {
	err := vhostuser.Run(ctx, s.end, s.dev, vhostuser.Options{Log: s.log, Counters: s.dev.Counters()})
	if errors.Is(err, context.Canceled) {
		err = nil // it was told to end
	}
	return err
}

// Snapshot implements [fleet.Device].
func (s *served) Snapshot() netdev.DeviceSnapshot { return s.dev.Snapshot() }

// SetModeration implements [fleet.Device].
func (s *served) SetModeration(queue int, engine string) error {
	spec, err := coalesce.ParseEngine(engine, direction(queue))
	if err != nil {
		return fmt.Errorf("%w: %w", mgmt.ErrValue, err)
	}
	if err = s.dev.SetModeration(queue, spec); errors.Is(err, netdev.ErrQueue) {
		err = fmt.Errorf("%w: %w", mgmt.ErrValue, err)
	}
	return err
}

// Close implements [fleet.Device].
func (s *served) Close() error {
	if s.end.Listener != nil {
		// It is closed already if the device was served.
		_ = s.end.Listener.Close()
	}
	err := s.dev.Close()
	s.trace.close(s.log)
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}
