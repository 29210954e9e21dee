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
)

// serveCmd serves one device.
type serveCmd struct {
	SocketPath string `name:"socket-path" xor:"socket" placeholder:"PATH" group:"socket" help:"The vhost-user Unix socket, 1 to 107 bytes. vhostnet listens there and serves one front-end after the other; a socket file that a dead process left is replaced."`
	FD         *int   `name:"fd" xor:"socket" placeholder:"N" group:"socket" help:"An inherited descriptor: a listening vhost-user socket, or one that is connected; vhostnet then ends with the connection."`
	Config     string `name:"config" xor:"socket" placeholder:"FILE" group:"socket" help:"Serve the devices that a TOML file describes instead of the one that flags describe: a table [[device]] for each, whose keys are the names of the flags for the front-end's socket, the device and its moderation. SIGHUP reads it again. Devices can then also be added and removed over the API, with vhostnet device for example."`
	Client     bool   `group:"socket" help:"Connect to --socket-path, where the front-end listens, instead of listening; retry until it is there, and again after it has gone."`

	PrintCapabilities bool `help:"Print the back-end's capabilities in JSON as QEMU's back-end program conventions define them, ignore everything else, and exit."`

	PrintFeatures bool `help:"Print the feature bits that a device with these options has, one a line: number, name, whether it is offered (yes, no, or \"on request\" with --features +NAME), and what it needs. Then exit."`

	deviceFlags

	threadFlags

	API []address `name:"api" sep:"none" placeholder:"ADDRESS" group:"watch" help:"Serve the management API there: unix:PATH, or vsock:PORT (port 1 to 4294967294, on all context identifiers of this machine, guests included; vsock:CID:PORT for one of them), which is read-only. Repeatable. GET /v1/devices answers in JSON; vhostnet moderation changes engines."`

	logFlags
}

// Help is shown by --help.
func (*serveCmd) Help() string {
	return `It stays in the foreground and serves one device, or with --config those of a file. SIGTERM and SIGINT end it within 2 s with exit code 0 and its sockets removed. Exit code 1: something failed; 2: the command line is wrong.

Example, with QEMU and a TAP:

    vhostnet serve --socket-path /run/vn0.sock --port tap:vn0 --rx-coalesce 64/64 --api unix:/run/vn0.api

    qemu-system-x86_64 ... -object memory-backend-memfd,id=mem,size=1G,share=on -machine memory-backend=mem -chardev socket,id=c0,path=/run/vn0.sock -netdev vhost-user,id=n0,chardev=c0 -device virtio-net-pci,netdev=n0

    curl --unix-socket /run/vn0.api http://vhostnet/v1/devices

Example of a file for --config:

    [[device]]
    name = "vm1"
    socket-path = "/run/vm1.sock"
    port = "tap:vm1"
    rx-coalesce = "64/64"

    [[device]]
    name = "vm2"
    socket-path = "/run/vm2.sock"
    port = "tap:vm2"
    queue-pairs = 4

A device that cannot be opened or served is shown as failed by the API and does not touch the others; SIGHUP tries it again. When the file is read again, devices whose tables are the same are left alone, those that were added over the API too; a file with an error changes nothing. fd, and tap-fd as a port, are good in a file that is read at the start only.`
}

// errNoSocket is what is wrong with a command line that only says what to serve.
var errNoSocket = usageError{fmt.Errorf("no socket: want --socket-path with 1 to %d bytes, --fd or --config", maxPath)}

// Run serves until the signal, or until a connection given with --fd ends.
func (c *serveCmd) Run(env environment) error {
	switch {
	case c.PrintFeatures:
		return c.printFeatures(env.stdout)
	case c.SocketPath == "" && c.FD == nil && c.Config == "":
		return errNoSocket
	}
	log, err := c.logger(env.stderr)
	if err != nil {
		return err
	}
	// A log collector that dies must not take the guest's network with it: the
	// runtime ends a program that writes to a closed standard error.
	signal.Ignore(unix.SIGPIPE)
	pool, err := c.pool()
	if err != nil {
		return err
	}
	defer pool.Close()
	if c.Config != "" {
		err = c.serveFile(env.ctx, log, pool)
	} else {
		err = c.serveOne(env.ctx, log, pool)
	}
	if err == nil {
		log.Info("ended")
	}
	return err
}

// serveOne serves the device that the flags describe, and ends with it.
func (c *serveCmd) serveOne(ctx context.Context, log *slog.Logger, pool *netdev.Pool) error {
	end, err := endpoint(c.SocketPath, c.FD, c.Client)
	if err != nil {
		return err
	}
	logStart(log)
	d, err := openServed(log, pool, end, &c.deviceFlags)
	if err != nil {
		return err
	}
	err = c.withAPI(ctx, log, mgmt.Options{
		Devices: func() []netdev.DeviceSnapshot { return []netdev.DeviceSnapshot{d.Snapshot()} },
		SetModeration: func(name string, queue int, engine string) error {
			if name != string(c.Name) {
				return fmt.Errorf("%w: %q", mgmt.ErrNoDevice, name)
			}
			return d.SetModeration(queue, engine)
		},
	}, d.Serve)
	return errors.Join(err, d.Close())
}

func logStart(log *slog.Logger) {
	log.Info("starting", "version", versionLine(version()), "pid", os.Getpid())
}

// withAPI runs the status API beside serve. Whichever ends first ends the other.
func (c *serveCmd) withAPI(ctx context.Context, log *slog.Logger, o mgmt.Options, serve func(context.Context) error) error {
	listeners, err := c.listen()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	api := make(chan error, 1)
	if len(listeners) > 0 {
		o.Version, o.Log = version(), log
		srv := mgmt.New(o)
		go func() {
			defer cancel()
			api <- srv.Serve(ctx, listeners...)
		}()
	} else {
		api <- nil
	}
	err = serve(ctx)
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
