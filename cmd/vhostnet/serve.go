package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/mgmt"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/vhostuser"
)

// serveCmd serves one device.
type serveCmd struct {
	SocketPath string `name:"socket-path" xor:"socket" placeholder:"PATH" group:"socket" help:"The vhost-user Unix socket, 1 to 107 bytes. vhostnet listens there and serves one front-end after the other; a socket file that a dead process left is replaced."`
	FD         *int   `name:"fd" xor:"socket" placeholder:"N" group:"socket" help:"An inherited descriptor: a listening vhost-user socket, or one that is connected; vhostnet then ends with the connection."`
	Client     bool   `group:"socket" help:"Connect to --socket-path, where the front-end listens, instead of listening; retry until it is there, and again after it has gone."`

	PrintCapabilities bool `help:"Print the back-end's capabilities in JSON as QEMU's back-end program conventions define them, ignore everything else, and exit."`

	PrintFeatures bool `help:"Print the feature bits that a device with these options has, one a line: number, name, whether it is offered (yes, no, or \"on request\" with --features +NAME), and what it needs. Then exit."`

	deviceFlags

	API []address `name:"api" sep:"none" placeholder:"ADDRESS" group:"watch" help:"Serve the management API there: unix:PATH, or vsock:PORT (port 1 to 4294967294, on all context identifiers of this machine, guests included; vsock:CID:PORT for one of them), which is read-only. Repeatable. GET /v1/devices answers in JSON; vhostnet moderation changes engines."`

	logFlags
}

// Help is shown by --help.
func (*serveCmd) Help() string {
	return `It stays in the foreground. SIGTERM and SIGINT end it within 2 s with exit code 0 and its sockets removed. Exit code 1: something failed; 2: the command line is wrong.

Example, with QEMU and a TAP:

    vhostnet serve --socket-path /run/vn0.sock --port tap:vn0 --rx-coalesce 64/64 --api unix:/run/vn0.api

    qemu-system-x86_64 ... -object memory-backend-memfd,id=mem,size=1G,share=on -machine memory-backend=mem -chardev socket,id=c0,path=/run/vn0.sock -netdev vhost-user,id=n0,chardev=c0 -device virtio-net-pci,netdev=n0

    curl --unix-socket /run/vn0.api http://vhostnet/v1/devices`
}

// Run serves until the signal, or until a connection given with --fd ends.
func (c *serveCmd) Run(env environment) error {
	if c.PrintFeatures {
		return c.printFeatures(env.stdout)
	}
	end, err := c.endpoint()
	if err != nil {
		return err
	}
	log, err := c.logger(env.stderr)
	if err != nil {
		return err
	}
	// A log collector that dies must not take the guest's network with it: the
	// runtime ends a program that writes to a closed standard error.
	signal.Ignore(unix.SIGPIPE)
	log.Info("starting", "version", versionLine(version()), "pid", os.Getpid())
	t, err := c.openTrace()
	if err != nil {
		return err
	}
	d, err := c.open(log, t)
	if err != nil {
		t.close(log)
		return err
	}
	err = c.serve(env.ctx, log, d, end)
	if cerr := d.Close(); cerr != nil {
		err = errors.Join(err, fmt.Errorf("close: %w", cerr))
	}
	t.close(log)
	if err == nil {
		log.Info("ended")
	}
	return err
}

// serve runs the status API beside the device. Whichever ends first ends the
// other.
func (c *serveCmd) serve(ctx context.Context, log *slog.Logger, d *netdev.Device, end vhostuser.Endpoint) error {
	listeners, err := c.listen()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	api := make(chan error, 1)
	if len(listeners) > 0 {
		srv := mgmt.New(mgmt.Options{
			Devices: func() []netdev.DeviceSnapshot { return []netdev.DeviceSnapshot{d.Snapshot()} },
			Version: version(),
			Log:     log,

			SetModeration: func(name string, queue int, engine string) error {
				return setModeration(d, name, queue, engine)
			},
		})
		go func() {
			defer cancel()
			api <- srv.Serve(ctx, listeners...)
		}()
	} else {
		api <- nil
	}
	err = vhostuser.Run(ctx, end, d, vhostuser.Options{Log: log, Counters: d.Counters()})
	if errors.Is(err, context.Canceled) {
		err = nil // it was told to end
	}
	cancel()
	return errors.Join(err, <-api)
}

// listen opens all of --api, or none.
func (c *serveCmd) listen() ([]net.Listener, error) {
	var ls []net.Listener
	for _, a := range c.API {
		l, err := mgmt.Listen(mgmt.Address(a))
		if err != nil {
			for _, l := range ls {
				_ = l.Close()
			}
			return nil, err
		}
		ls = append(ls, l)
	}
	return ls, nil
}
