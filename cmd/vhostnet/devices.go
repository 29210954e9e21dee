package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"text/tabwriter"

	"github.com/vhostnet/vhostnet/mgmt"
)

// deviceCmd changes the devices of a running process.
type deviceCmd struct {
	Add    deviceAddCmd    `cmd:"" help:"Add a device to a process that was started with serve --config."`
	Remove deviceRemoveCmd `cmd:"" help:"Remove one."`
	List   deviceListCmd   `cmd:"" help:"List the devices of a process."`
}

// apiFlag is where the process is found.
type apiFlag struct {
	API address `name:"api" required:"" placeholder:"ADDRESS" help:"Where the process's management API is: unix:PATH; to list devices also vsock:CID:PORT."`
}

// with runs f with a client.
func (a apiFlag) with(f func(*mgmt.Client) error) error {
	client, err := mgmt.NewClient(mgmt.Address(a.API))
	if err != nil {
		return usageError{err}
	}
	defer client.Close()
	return f(client)
}

// deviceAddCmd has the flags of serve that describe a device.
type deviceAddCmd struct {
	apiFlag
	SocketPath string `name:"socket-path" required:"" placeholder:"PATH" help:"The vhost-user Unix socket, 1 to 107 bytes, where the device listens."`
	Client     bool   `help:"Connect to --socket-path, where the front-end listens, instead of listening."`
	deviceFlags
}

// Help is shown by --help.
func (*deviceAddCmd) Help() string {
	return `The device is served until it is removed or the process ends. It is not written to the process's file; reading that again (SIGHUP) leaves the device alone.`
}

// Run adds the device.
func (c *deviceAddCmd) Run(env environment) error {
	// The process may be in another directory.
	path, err := filepath.Abs(c.SocketPath)
	if err != nil {
		return err
	}
	t := deviceTable{SocketPath: path, Client: c.Client, deviceFlags: c.deviceFlags}
	if t.Trace != "" {
		if t.Trace, err = filepath.Abs(t.Trace); err != nil {
			return err
		}
	}
	object, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return c.with(func(client *mgmt.Client) error {
		d, err := client.AddDevice(env.ctx, object)
		if err == nil {
			_, err = fmt.Fprintf(env.stdout, "%s: port %s, socket %s\n", d.Name, d.Port, path)
		}
		return err
	})
}

// deviceRemoveCmd removes a device.
type deviceRemoveCmd struct {
	apiFlag
	Name deviceName `arg:"" help:"The device's name."`
}

// Run returns when the device is gone.
func (c *deviceRemoveCmd) Run(env environment) error {
	return c.with(func(client *mgmt.Client) error { return client.RemoveDevice(env.ctx, string(c.Name)) })
}

// deviceListCmd lists devices.
type deviceListCmd struct {
	apiFlag
	JSON bool `name:"json" help:"Print what GET /v1/devices answers, without the envelope."`
}

// Run prints to standard output.
func (c *deviceListCmd) Run(env environment) error {
	return c.with(func(client *mgmt.Client) error {
		list, err := client.Devices(env.ctx)
		if err != nil {
			return err
		}
		if c.JSON {
			return json.NewEncoder(env.stdout).Encode(list)
		}
		w := tabwriter.NewWriter(env.stdout, 0, 8, 2, ' ', 0)
		_, _ = fmt.Fprintln(w, "NAME\tSTATE\tPORT\tQUEUE PAIRS\tFRONT-END\tERROR")
		for _, d := range list {
			front := "none"
			if d.FrontEnd.Connected {
				front = "connected"
			}
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", d.Name, d.State, d.Port, d.QueuePairs, front, d.Error)
		}
		return w.Flush()
	})
}
