package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"reflect"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/fleet"
	"github.com/vhostnet/vhostnet/mgmt"
	"github.com/vhostnet/vhostnet/netdev"
)

// noDeviceFlags are the flags of a device when none is given.
func noDeviceFlags() deviceFlags {
	one := 1
	return deviceFlags{Name: "net0", TapIO: "auto", QueuePairs: &one}
}

// serveFile serves the devices of a file, and those that come over the API, until
// ctx is done.
func (c *serveCmd) serveFile(ctx context.Context, log *slog.Logger, pool *netdev.Pool) error {
	if c.Client || !reflect.DeepEqual(c.deviceFlags, noDeviceFlags()) {
		return usageError{errors.New("--config: the file describes devices, flags that do so cannot be given beside it")}
	}
	// One that comes early is for later.
	again := make(chan os.Signal, 1)
	signal.Notify(again, unix.SIGHUP)
	defer signal.Stop(again)
	tables, err := readConfig(c.Config)
	if err != nil {
		return err
	}
	logStart(log)
	f := fleet.New(log)
	defer f.Close()
	if err := apply(f, log, pool, tables); err != nil {
		return err
	}
	return c.withAPI(ctx, log, mgmt.Options{
		Devices: f.Snapshots,
		SetModeration: func(name string, queue int, engine string) error {
			return forAPI(name, f.SetModeration(name, queue, engine))
		},
		AddDevice: func(object []byte) (string, error) {
			t, err := parseObject(object)
			if err != nil {
				return "", err
			}
			return string(t.Name), forAPI(string(t.Name), f.Add(t.definition(log, pool)))
		},
		RemoveDevice: func(name string) error { return forAPI(name, f.Remove(name)) },
	}, func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-again:
				c.reload(f, log, pool)
			}
		}
	})
}

// reload reads the file again. One with an error changes nothing.
func (c *serveCmd) reload(f *fleet.Fleet, log *slog.Logger, pool *netdev.Pool) {
	tables, err := readConfig(c.Config)
	if err == nil {
		err = apply(f, log, pool, tables)
	}
	if err != nil {
		log.Error("the configuration stays as it was", "error", err)
	}
}

func apply(f *fleet.Fleet, log *slog.Logger, pool *netdev.Pool, tables []deviceTable) error {
	var list []fleet.Definition
	for _, t := range tables {
		list = append(list, t.definition(log, pool))
	}
	n, err := f.Apply(list)
	if err == nil {
		log.Info("configuration in force", "added", n.Added, "changed", n.Changed, "removed", n.Removed, "kept", n.Kept, "failed", n.Failed)
	}
	return err
}

// forAPI says whose fault an error about a device is.
func forAPI(name string, err error) error {
	var usage usageError
	switch {
	case errors.Is(err, fleet.ErrMissing):
		return fmt.Errorf("%w: %q", mgmt.ErrNoDevice, name)
	case errors.Is(err, fleet.ErrExists):
		return fmt.Errorf("%w: %q", mgmt.ErrExists, name)
	case errors.As(err, &usage):
		return fmt.Errorf("%w: %w", mgmt.ErrValue, err)
	}
	return err
}
