package main

import (
	"fmt"
	"slices"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/mgmt"
	"github.com/vhostnet/vhostnet/netdev"
)

// direction is that of a virtqueue: receive queues have even indices.
func direction(queue int) coalesce.Direction {
	return coalesce.Direction(queue & 1)
}

// moderationCmd changes engines of a running process.
type moderationCmd struct {
	API    address    `name:"api" required:"" placeholder:"ADDRESS" help:"Where the process's management API is: unix:PATH."`
	Device deviceName `placeholder:"NAME" help:"The device. May be left out if there is one."`
	Queue  []int      `placeholder:"N" help:"Only these virtqueues: 0 is the first receive queue, 1 the first transmit queue. Default: all."`
	RX     engine     `name:"rx" placeholder:"ENGINE" help:"The engine for receive queues, written as for serve's --rx-moderation."`
	TX     engine     `name:"tx" placeholder:"ENGINE" help:"The engine for transmit queues, likewise."`
}

// Run changes the queues one after the other; the first that fails ends it.
func (c *moderationCmd) Run(env environment) error {
	if c.RX == "" && c.TX == "" {
		return usageError{fmt.Errorf("nothing to change: give --rx, --tx or both")}
	}
	client, err := mgmt.NewClient(mgmt.Address(c.API))
	if err != nil {
		return usageError{err}
	}
	defer client.Close()
	d, err := c.device(env, client)
	if err != nil {
		return err
	}
	changed := 0
	for _, q := range d.Queues {
		spec := map[string]engine{"rx": c.RX, "tx": c.TX}[q.Kind]
		if spec == "" || len(c.Queue) > 0 && !slices.Contains(c.Queue, q.Index) {
			continue
		}
		if err := client.SetModeration(env.ctx, d.Name, q.Index, string(spec)); err != nil {
			return err
		}
		changed++
		_, _ = fmt.Fprintf(env.stdout, "%s queue %d (%s): %s\n", d.Name, q.Index, q.Kind, spec)
	}
	if changed == 0 {
		return fmt.Errorf("device %s has no such virtqueue", d.Name)
	}
	return nil
}

func (c *moderationCmd) device(env environment, client *mgmt.Client) (netdev.DeviceSnapshot, error) {
	if c.Device != "" {
		return client.Device(env.ctx, string(c.Device))
	}
	list, err := client.Devices(env.ctx)
	if err == nil && len(list) != 1 {
		err = usageError{fmt.Errorf("the process has %d devices: name one with --device", len(list))}
	}
	if err != nil {
		return netdev.DeviceSnapshot{}, err
	}
	return list[0], nil
}
