package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/bits"
	"strings"
	"text/tabwriter"

	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/port/builtin"
	"github.com/vhostnet/vhostnet/virtio"
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

// printFeatures prints all features, and what a device with these flags offers.
func (f *deviceFlags) printFeatures(w io.Writer) error {
	if f.Port == "" {
		f.Port = "null"
	}
	d, err := f.open(slog.New(slog.DiscardHandler), nil, nil)
	if err != nil {
		return err
	}
	offered, available := d.Features(), d.Available()
	if err := d.Close(); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "BIT\tNAME\tOFFERED\tNEEDS")
	for rest := virtio.Named(); rest != 0; rest &= rest - 1 {
		bit := rest & -rest
		state := "no"
		switch {
		case offered.Has(bit):
			state = "yes"
		case available.Has(bit):
			state = "on request"
		}
		var needs []string
		for _, d := range virtio.Dependencies(bit) {
			needs = append(needs, strings.Join(d.AnyOf.Names(), " or "))
		}
		line := fmt.Sprintf("%d\t%s\t%s", bits.TrailingZeros64(uint64(bit)), bit, state)
		if len(needs) > 0 {
			line += "\t" + strings.Join(needs, " and ")
		}
		fmt.Fprintln(t, line)
	}
	return t.Flush()
}
