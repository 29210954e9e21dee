package main

import (
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/port/builtin"
)

// featuresCmd prints what a device can offer.
type featuresCmd struct {
	JSON bool `name:"json" help:"Print a JSON array of names."`
}

// Help is shown by --help.
func (*featuresCmd) Help() string {
	return `The list is for a device with --queue-pairs 2, --mac and --mtu and a port that has every offload. What the host's kernel cannot do for a TAP is left out of the offer there.`
}

// Run prints to standard output, one name a line.
func (c *featuresCmd) Run(env environment) error {
	p, err := builtin.Null(2)
	if err != nil {
		return err
	}
	d, err := netdev.New(netdev.Config{
		QueuePairs: 2, MAC: [6]byte{0x52, 0x54}, MTU: 1500, Log: slog.New(slog.DiscardHandler),
	}, p)
	if err != nil {
		return err
	}
	names := d.Features().Names()
	if err := d.Close(); err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(env.stdout).Encode(names)
	}
	for _, name := range names {
		if _, err := fmt.Fprintln(env.stdout, name); err != nil {
			return err
		}
	}
	return nil
}
